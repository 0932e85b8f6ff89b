"""Plans that do not fit the model are refused before any work."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.schemes import PER_CHANNEL, OpScheme, PerGroup, Plan, TensorScheme, float_op

Kit = SimpleNamespace


def test_nodes_that_cannot_be_quantized_are_named_with_the_reason(kit: Kit) -> None:
    net = kit.Net()
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", net.weight(4, 4)], ["inner"], name="inside")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )
    condition = net.op("Greater", net.op("ReduceSum", "x", keepdims=0), net.constant(0.0))
    net.op("If", condition, then_branch=inner, else_branch=inner)
    net.op("Conv", "image", "kernel", name="kernel_given")
    net.op("Gemm", "x", net.weight(4, 4), "y", name="bias_given")
    net.op("Add", net.constant(1.0), net.constant(2.0), name="fixed")
    net.op("Mul", net.op("Shape", "x"), net.constant(np.asarray(2)), name="of_shapes")
    half = net.op("Cast", "x", to=onnx.TensorProto.FLOAT16)
    net.op("MatMul", half, net.constant(np.ones((4, 4), np.float16)), name="half")
    codes = net.op("QuantizeLinear", "x", net.constant(0.1))
    net.op("MatMul", net.op("DequantizeLinear", codes, net.constant(0.1)), net.weight(4, 4), name="again")
    net.op("Gather", net.op("Relu", "x"), net.constant(np.asarray([0])), name="passes_on")
    net.op("Add", "x", "y", name="fine")
    inputs = {"x": [2, 4], "y": [2, 4], "image": [1, 1, 4, 4], "kernel": [1, 1, 3, 3]}
    model = net.model(inputs, "fine_out")
    assert list(quantizable_nodes(model)) == [("fine", "Add")]
    reasons = {name: reason for (name, _), reason in unquantizable_nodes(model).items()}
    assert reasons == {
        "inside": "it is inside the body of an If, Loop or Scan",
        "kernel_given": "its weight is not constant",
        "bias_given": "its bias is not constant",
        "fixed": "all its inputs are constant",
        "half": "its inputs are not known to be float32",
        "again": "it is quantized already",
    } | {name: reason for name, reason in reasons.items() if name.startswith("inside_")}


@pytest.fixture
def convolution(kit: Kit) -> SimpleNamespace:
    net = kit.Net()
    y = net.op("Conv", "x", net.weight(4, 3, 3, 3), net.weight(4), name="first")
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Tanh", net.op("Relu", y), name="tanh"))
    return SimpleNamespace(model=model, scheme=kit.plan_for(model)["first", "Conv"])


def refused(
    kit: Kit, convolution: SimpleNamespace, message: str, name: str = "first", op_type: str = "Conv", **changes: object
) -> None:
    options = {name: changes.pop(name) for name in ("quant_format",) if name in changes}
    plan = Plan({(name, op_type): replace(convolution.scheme, **changes)})
    with pytest.raises(ConfigError, match=message):
        kit.quantize(convolution.model, plan, **options)


def test_plans_for_nodes_there_are_not(kit: Kit, convolution: SimpleNamespace) -> None:
    refused(kit, convolution, "has no Conv called 'frist'; did you mean 'first'", "frist")
    refused(kit, convolution, "Tanh is not quantized statically", "tanh", "Tanh")


def test_schemes_there_are_no_nodes_for(kit: Kit, convolution: SimpleNamespace) -> None:
    act, weight = convolution.scheme.activation, convolution.scheme.weight
    refused(kit, convolution, "activation is in float", activation=None)
    refused(
        kit, convolution, "'first': an activation can be int8.*not int7", activation=replace(act, dtype=dtype("int7"))
    )
    refused(kit, convolution, "not per_channel", activation=replace(act, granularity=PER_CHANNEL))
    refused(kit, convolution, "weight-only", weight=replace(weight, granularity=PerGroup(32)))
    refused(kit, convolution, "says nothing of it", weight=None)
    refused(kit, convolution, "a weight can be .*not mxfp4", weight=replace(weight, dtype=dtype("mxfp4")))
    wide = replace(act, dtype=dtype("int16"))
    refused(kit, convolution, "int8, uint8 in this format, not int16", activation=wide, quant_format="QOperator")


def test_what_only_passes_values_on_may_be_named(kit: Kit, convolution: SimpleNamespace) -> None:
    plan = Plan({("first", "Conv"): convolution.scheme, ("Relu_2", "Relu"): OpScheme(None, kit.ACTIVATION, "static")})
    kit.check_close(convolution.model, kit.quantize(convolution.model, plan))


def test_what_the_plan_has_in_float_passes_no_integers_on(kit: Kit) -> None:
    net = kit.Net()
    pooled = net.op("MaxPool", net.conv("x", (3, 4)), kernel_shape=[2, 2], name="pool")
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(pooled, (4, 4)))
    plan = kit.plan_for(model)
    scales = []
    for each in (plan, Plan({**plan, ("pool", "MaxPool"): float_op(has_weight=False)})):
        quantized = kit.quantize(model, each)
        kit.check_close(model, quantized)
        pool = quantized.graph.node("pool")
        before, behind = pool.inputs[0].producer(), pool.outputs[0].consumers()[0]
        scales.append(before.inputs[1] is behind.inputs[1])
    assert scales == [True, False]


def test_other_modes_are_left_to_others(kit: Kit, convolution: SimpleNamespace) -> None:
    plan = Plan({("first", "Conv"): replace(convolution.scheme, mode="dynamic")})
    quantized = quantize_static(convolution.model, plan, None)
    assert [n.op_type for n in quantized.graph] == ["Conv", "Relu", "Tanh"]


def test_data_is_asked_for(kit: Kit, convolution: SimpleNamespace) -> None:
    with pytest.raises(CalibrationError, match="needs calibration data"):
        quantize_static(convolution.model, Plan({("first", "Conv"): convolution.scheme}), None)


def test_a_weight_with_nan_names_its_node(kit: Kit) -> None:
    net = kit.Net()
    weight = np.ones((4, 5))
    weight[1, 2] = np.nan
    model = net.model({"x": [2, 4]}, net.op("MatMul", "x", net.constant(weight), name="broken"))
    with pytest.raises(QuantizationError, match=r"'broken'.*weight.*NaN"):
        kit.quantize(model)


def test_a_model_of_an_old_opset(kit: Kit) -> None:
    net = kit.Net(opset=11)
    proto = net.proto({"x": [1, 3, 6, 6]}, net.op("Relu", net.conv("x", (3, 4))))
    model = normalise(read_model(proto))
    for kind in ("uint8", "uint16"):
        plan = kit.plan_for(model, activation=TensorScheme(dtype(kind), symmetric=False))
        kit.check_close(model, kit.quantize(model, plan))


def test_a_convolution_has_no_zero_point_for_each_channel(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 8, 8]}, net.conv("x", (3, 8)))
    uint8 = TensorScheme(dtype("uint8"), symmetric=False, granularity=kit.WEIGHT.granularity)
    with pytest.raises(ConfigError, match=r"zero point for each channel.*128"):
        kit.quantize(model, kit.plan_for(model, uint8))
