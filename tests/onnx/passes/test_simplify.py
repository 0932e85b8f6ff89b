"""Models that compute the same with fewer nodes."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.onnx.passes.simplify import simplify, tidy
from neural_compressor.onnx.quantization import RTNConfig, quantize

Kit = SimpleNamespace


def simplified(kit: Kit, model: ir.Model) -> list[str]:
    """The op types left, after a look that the results are the same."""
    small = model.clone()
    simplify(small)
    assert [v.name for v in small.graph.outputs] == [v.name for v in model.graph.outputs]
    for feed in kit.feeds_of(model, 2):
        for want, got in zip(kit.run(model, feed), kit.run(small, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return [node.op_type for node in small.graph]


def batch_norm(net: Any, x: str, channels: int) -> str:
    parameters = [net.weight(channels), net.weight(channels), net.weight(channels)]
    return net.op("BatchNormalization", x, *parameters, net.constant(net.rng.uniform(0.1, 2, channels)), epsilon=1e-3)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [True, False])
def test_what_follows_a_convolution_goes_into_it(kit: Kit, op_type: str, group: int, bias: bool) -> None:
    net = kit.Net()
    shape = (6, 4 // group, 3, 3) if op_type == "Conv" else (4, 6 // group, 3, 3)
    y = net.op(op_type, "x", net.weight(*shape), *([net.weight(6)] if bias else []), group=group)
    y = batch_norm(net, y, 6)
    y = net.op("Mul", y, net.weight(1, 6, 1, 1))
    y = net.op("Add", net.weight(6, 1, 1), y)
    y = net.op("Div", net.op("Sub", y, net.constant(0.5)), net.constant([3.0]))
    model = net.model({"x": [2, 4, 7, 7]}, y)
    assert simplified(kit, model) == [op_type]


@pytest.mark.parametrize("trans", [0, 1])
def test_what_follows_a_gemm_goes_into_it(kit: Kit, trans: int) -> None:
    net = kit.Net()
    weight = net.weight(*((5, 4) if trans else (4, 5)))
    y = net.op("Gemm", "x", weight, net.weight(1, 5), transB=trans, alpha=0.5, beta=2.0)
    model = net.model({"x": [3, 4]}, batch_norm(net, net.op("Add", y, net.weight(5)), 5))
    assert simplified(kit, model) == ["Gemm"]


def test_what_would_change_the_result_stays(kit: Kit) -> None:
    net = kit.Net()
    image = net.conv("x", (3, 6))
    outs = [
        net.op("Sub", net.constant(1.0), net.conv("x", (3, 6))),  # the other way round
        net.op("Add", net.conv("x", (3, 6)), net.weight(1, 1, 1, 6)),  # along another axis
        net.op("Add", net.conv("x", (3, 6)), net.weight(2, 6, 1, 1)),  # one a sample
        net.op("Mul", net.conv("x", (3, 6)), "factor"),  # not constant
        net.op("Mul", image, net.constant(2.0)),  # read by another too
        net.op("Exp", image),
    ]
    model = net.model({"x": [2, 3, 6, 6], "factor": [1]}, *outs)
    assert len(simplified(kit, model)) == len(model.graph)


def test_a_weight_that_others_read_is_not_changed_for_them(kit: Kit) -> None:
    net = kit.Net()
    weight = net.weight(3, 3, 3, 3)
    first = batch_norm(net, net.op("Conv", "x", weight), 3)
    model = net.model({"x": [1, 3, 6, 6]}, first, net.op("Conv", "x", weight))
    assert simplified(kit, model) == ["Conv", "Conv"]


def test_nodes_that_do_nothing_go(kit: Kit) -> None:
    net = kit.Net()
    y = net.op("Dropout", net.op("Identity", net.conv("x", (3, 3))))
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Identity", net.op("Relu", y)))
    assert simplified(kit, model) == ["Conv", "Relu", "Identity"]  # which gives the output its name


def test_a_transposed_weight_is_a_weight(kit: Kit) -> None:
    net = kit.Net()
    weight = net.op("Transpose", net.weight(5, 4), perm=[1, 0])
    model = net.model({"x": [2, 4]}, net.op("MatMul", "x", weight), net.op("MatMul", net.op("Relu", "x"), weight))
    assert simplified(kit, model) == ["MatMul", "Relu", "MatMul"]


@pytest.mark.parametrize("division_first", [True, False])
@pytest.mark.parametrize("division", ["Div", "Mul"])
def test_hard_swish(kit: Kit, division_first: bool, division: str) -> None:
    net = kit.Net()
    a = net.op("Tanh", "x")
    gate = net.op("Clip", net.op("Add", net.constant(3.0), a), net.constant(0.0), net.constant(6.0))
    by_six = (net.constant(6.0 if division == "Div" else 1 / 6),)
    if division_first:
        y = net.op("Mul", a, net.op(division, gate, *by_six))
    else:
        y = net.op(division, net.op("Mul", gate, a), *by_six)
    model = net.model({"x": [4, 50]}, y)
    assert simplified(kit, model) == ["Tanh", "HardSigmoid", "Mul"]


def test_a_factor_goes_into_the_weights_behind_it(kit: Kit) -> None:
    net = kit.Net()
    a = net.op("Add", net.op("Mul", net.constant([1.5]), net.op("Tanh", "x")), net.constant([-0.2]))
    b = net.op("Div", net.op("Tanh", "x"), net.constant(-4.0))
    c = net.op("Mul", net.op("Tanh", "z"), net.constant([[3.0]]))
    outs = [net.conv(a, (4, 3), group=1), net.conv(a, (4, 4), group=4), net.conv(b, (4, 2))]
    outs += [net.op("MatMul", c, net.weight(5, 6)), net.op("Gemm", c, net.weight(6, 5), net.weight(6), transB=1)]
    model = net.model({"x": [1, 4, 6, 6], "z": [3, 5]}, *outs)
    assert Counter(simplified(kit, model)) == {"Tanh": 3, "Add": 1, "Conv": 3, "MatMul": 1, "Gemm": 1}


def test_factors_that_others_see_stay(kit: Kit) -> None:
    net = kit.Net()
    shared = net.op("Mul", net.op("Tanh", "x"), net.constant(2.0))
    given = net.op("Mul", net.op("Tanh", "x"), net.constant(2.0))
    nought = net.op("Mul", net.op("Tanh", "x"), net.constant(0.0))
    wide = net.op("Mul", "z", net.constant([[[2.0]]]))  # which adds axes
    right = net.op("Mul", net.op("Tanh", "z"), net.constant(2.0))
    outs = [net.op("Exp", shared), net.conv(shared, (4, 3)), given, net.conv(given, (4, 3)), net.conv(nought, (4, 3))]
    outs += [net.op("MatMul", wide, net.weight(5, 2)), net.op("MatMul", net.weight(2, 3), right)]
    model = net.model({"x": [1, 4, 6, 6], "z": [3, 5]}, *outs)
    assert simplified(kit, model).count("Mul") == 5


def test_outputs_of_the_model_keep_their_nodes(kit: Kit) -> None:
    net = kit.Net()
    weight = net.op("Transpose", net.weight(5, 4), perm=[1, 0])
    same = net.op("Identity", net.op("Relu", "x"))
    model = net.model({"x": [2, 4]}, weight, same, net.op("MatMul", same, weight))
    assert simplified(kit, model) == ["Transpose", "Relu", "Identity", "MatMul"]
    assert kit.quantize(model).graph.node("MatMul_4").inputs[1].producer().op_type == "DequantizeLinear"


def test_what_only_looks_like_hard_swish_stays(kit: Kit) -> None:
    net = kit.Net()
    outs = []
    for shift, high, six in ((3.0, 5.0, 6.0), (2.0, 6.0, 6.0), (3.0, 6.0, 5.0)):
        gate = net.op("Clip", net.op("Add", "x", net.constant(shift)), net.constant(0.0), net.constant(high))
        outs.append(net.op("Div", net.op("Mul", "x", gate), net.constant(six)))
    gate = net.op("Clip", net.op("Add", "x", net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    outs.append(net.op("Div", net.op("Mul", "z", gate), net.constant(6.0)))
    model = net.model({"x": [4, 50], "z": [4, 50]}, *outs)
    assert "HardSigmoid" not in simplified(kit, model)


def test_tidying_leaves_matrices_where_they_are(kit: Kit) -> None:
    net = kit.Net()
    y = batch_norm(net, net.conv("x", (3, 6)), 6)
    z = net.op("Gemm", "z", net.weight(4, 5), net.weight(5), beta=2.0)
    turned = net.op("MatMul", net.op("Add", z, net.weight(5)), net.op("Transpose", net.weight(2, 5)))
    model = net.model({"x": [1, 3, 6, 6], "z": [2, 4]}, y, turned)
    small = model.clone()
    tidy(small)
    assert [node.op_type for node in small.graph] == ["Conv", "Gemm", "Transpose", "MatMul"]
    for name, value in model.graph.initializers.items():
        if value.shape is not None and len(value.shape) == 2:
            assert small.graph.initializers[name].const_value is value.const_value
    for feed in kit.feeds_of(model, 2):
        for want, got in zip(kit.run(model, feed), kit.run(small, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_models_with_quantized_weights_are_tidy(kit: Kit) -> None:
    net = kit.Net()
    y = batch_norm(net, net.conv("x", (3, 6)), 6)
    proto = net.proto({"x": [1, 3, 6, 8]}, net.op("MatMul", y, net.weight(6, 64)))
    for level, expected in (
        (None, ["Conv", "MatMulNBits"]),
        ("DISABLE_ALL", ["Conv", "BatchNormalization", "MatMulNBits"]),
    ):
        new = quantize(proto, None, RTNConfig(), optimization_level=level)
        assert new is not None
        assert [node.op_type for node in new.graph.node] == expected
