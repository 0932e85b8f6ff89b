"""What the runtime makes of quantized ops, told apart."""

import logging
from types import SimpleNamespace

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.runtime.fusion_check import INTEGER_OPS, as_run, running_in_float
from neural_compressor.schemes import PER_TENSOR, Plan, TensorScheme

Kit = SimpleNamespace


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
def test_a_model_that_fuses_altogether(kit: Kit, quant_format: str, caplog: pytest.LogCaptureFixture) -> None:
    net = kit.Net()
    a = net.op("Relu", net.conv("x", (3, 4)))
    b = net.op("Add", net.conv(a, (4, 4)), a)
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Softmax", net.conv(b, (4, 4))))
    quantized = kit.quantize(model, quant_format=quant_format)
    with caplog.at_level(logging.WARNING):
        assert running_in_float(quantized) == {}
    running = as_run(quantized, ["CPUExecutionProvider"])
    names = [name for name, node in running.items() if node.op_type in INTEGER_OPS]
    assert sorted(names) == ["Add_4", "Conv_1", "Conv_3", "Conv_5"]
    assert not caplog.records


def test_ops_that_run_in_float_are_named_with_the_reason(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    net = kit.Net()
    up = net.op("ConvTranspose", net.conv("x", (3, 4)), net.weight(4, 4, 3, 3), name="up")
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Tanh", net.op("Conv", up, net.weight(4, 4, 1, 1), name="open")))
    plan = kit.plan_for(model)
    quantized = kit.quantize(model, plan, optypes_to_exclude_output_quant=["Conv"])
    with caplog.at_level(logging.WARNING):
        found = running_in_float(quantized)
    assert found["up"] == "the runtime has no integer ConvTranspose"
    assert found["open"] == "its output is not quantized at once"
    assert "2 of 3 quantized ops run in float" in caplog.text


@pytest.mark.parametrize(("weight", "activation", "which"), [("int8", "uint16", "uint16"), ("int4", "uint8", "int4")])
def test_types_without_a_kernel(kit: Kit, weight: str, activation: str, which: str) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Relu", net.conv("x", (3, 4))), (4, 4)))
    plan = kit.plan_for(
        model, TensorScheme(dtype(weight), granularity=PER_TENSOR), TensorScheme(dtype(activation), symmetric=False)
    )
    found = running_in_float(kit.quantize(model, plan))
    assert len(found) == 2
    assert set(found.values()) == {f"the runtime has no integer Conv on {which}"}


def test_float_ops_are_none_of_its_business(kit: Kit) -> None:
    net = kit.Net()
    tail = net.op("Sigmoid", net.op("Concat", net.conv("x", (3, 4)), "y", axis=1))
    model = net.model({"x": [1, 3, 6, 6], "y": [1, 1, 6, 6]}, net.op("Reshape", tail, net.constant([-1])))
    plan = Plan({key: scheme for key, scheme in kit.plan_for(model).items() if key[1] == "Conv"})
    assert running_in_float(kit.quantize(model, plan)) == {}
    assert running_in_float(model) == {}
