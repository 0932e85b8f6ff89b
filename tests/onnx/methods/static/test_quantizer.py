"""Static quantization from end to end: valid models, close results, integer kernels."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise, opset
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpKey, OpScheme, Plan, TensorScheme

Kit = SimpleNamespace
FORMATS = ("QDQ", "QOperator")


def types_of(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def residual_net(kit: Kit) -> ir.Model:
    """Convolutions with the ops that go with them in a vision model."""
    net = kit.Net()
    a = net.op("Relu", net.conv("x", (3, 8)))
    b = net.op("Relu", net.op("Add", net.conv(a, (8, 8)), a))
    pooled = net.op("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])
    c = net.op("Clip", net.conv(pooled, (8, 8), group=8), net.constant(0.0), net.constant(6.0))
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", c), (8, 8), kernel=1))
    d = net.op("Mul", c, gate)
    e = net.op("Concat", net.op("LeakyRelu", net.conv(d, (8, 8)), alpha=0.1), net.conv(d, (8, 4)), axis=1)
    f = net.op("AveragePool", net.conv(e, (12, 8)), kernel_shape=[2, 2], strides=[2, 2])
    flat = net.op("Flatten", net.op("GlobalAveragePool", net.conv(f, (8, 8))))
    y = net.op("Gemm", flat, net.weight(10, 8), net.weight(10), transB=1)
    return net.model({"x": [2, 3, 16, 16]}, y)


EXPECTED = {
    "QLinearConv": 8,
    "QLinearAdd": 1,
    "QLinearMul": 1,
    "QLinearConcat": 1,
    "QLinearSigmoid": 1,
    "QLinearLeakyRelu": 1,
    "QLinearAveragePool": 1,
    "QLinearGlobalAveragePool": 2,
    "QGemm": 1,
    "MaxPool": 1,
}


@pytest.mark.parametrize("quant_format", FORMATS)
def test_a_vision_model_runs_in_integers_from_end_to_end(kit: Kit, tmp_path: Path, quant_format: str) -> None:
    model = residual_net(kit)
    quantized = kit.quantize(model, quant_format=quant_format)
    kit.check_close(model, quantized, full_check=quant_format == "QDQ")
    run = kit.executed(quantized, tmp_path)
    assert {op_type: run[op_type] for op_type in EXPECTED} == EXPECTED
    # Nothing is converted but the input; the last Gemm gives floats by itself.
    assert run["QuantizeLinear"] == 1
    assert run["DequantizeLinear"] == 0
    if quant_format == "QOperator":
        assert types_of(quantized) == run


@pytest.mark.parametrize("activation", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("weight", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL])
def test_every_pair_of_types_gives_a_valid_model(
    kit: Kit, activation: str, weight: str, symmetric: bool, granularity: Any
) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 6)))
    flat = net.op("Flatten", net.op("MaxPool", net.conv(hidden, (6, 4)), kernel_shape=[2, 2]))
    model = net.model({"x": [2, 3, 6, 6]}, net.op("MatMul", flat, net.weight(100, 5)))
    plan = kit.plan_for(
        model,
        TensorScheme(dtype(weight), symmetric, granularity),
        TensorScheme(dtype(activation), symmetric),
    )
    if (weight, symmetric, granularity) == ("uint8", False, PER_CHANNEL) and activation.endswith("int8"):
        with pytest.raises(ConfigError, match="zero point for each channel"):
            kit.quantize(model, plan)
        return
    quantized = kit.quantize(model, plan)
    kit.check_close(model, quantized, tolerance=0.4 if weight == "int4" else 0.05)
    other_bits = "16" in activation or weight == "int4"
    assert opset(quantized) == (21 if other_bits else 17)


@pytest.mark.parametrize("algorithm", ["minmax", "kl", "percentile", "mse", "moving_average"])
def test_every_calibration_gives_a_close_model(kit: Kit, algorithm: str) -> None:
    model = residual_net(kit)
    plan = kit.plan_for(model, activation=replace(kit.ACTIVATION, algorithm=algorithm))
    kit.check_close(model, kit.quantize(model, plan), tolerance=0.25)


def test_reduced_ranges_leave_a_bit_unused(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, net.conv("x", (3, 6)))
    plan = kit.plan_for(model, replace(kit.WEIGHT, reduce_range=True), replace(kit.ACTIVATION, reduce_range=True))
    quantized = kit.quantize(model, plan)
    kit.check_close(model, quantized, tolerance=0.1)
    array = quantized.graph.node("Conv_1").inputs[1].producer().inputs[0].const_value.numpy()
    assert (array.min(), array.max()) == (-64, 64)


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [0, 1, 2, 0]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"group": 2, "dilations": [2, 2]},
    ],
    ids=["uneven_pads", "auto_pad", "groups"],
)
def test_convolutions_of_any_kind(kit: Kit, tmp_path: Path, quant_format: str, attributes: dict[str, Any]) -> None:
    net = kit.Net()
    weight = net.weight(6, 4 // attributes.get("group", 1), 3, 3)
    model = net.model({"x": [1, 4, 9, 9]}, net.op("Conv", "x", weight, net.weight(6), **attributes))
    quantized = kit.quantize(model, quant_format=quant_format, named=["Conv_1"])
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 1


@pytest.mark.parametrize("shape", [(6,), (5, 4, 3)], ids=["1d", "3d"])
def test_convolutions_of_other_dimensions(kit: Kit, tmp_path: Path, shape: tuple[int, ...]) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 2, *shape]}, net.op("Conv", "x", net.weight(4, 2, *[3] * len(shape))))
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 1


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_keeps_its_bias_in_float(kit: Kit, group: int) -> None:
    net = kit.Net()
    y = net.op("ConvTranspose", "x", net.weight(4, 6 // group, 3, 3), net.weight(6), group=group, strides=[2, 2])
    model = net.model({"x": [1, 4, 5, 5]}, y)
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    node = next(node for node in quantized.graph if node.op_type == "ConvTranspose")
    assert [v.producer() and v.producer().op_type for v in node.inputs] == ["DequantizeLinear"] * 2 + [None]


GEMMS = {
    "plain": ((5, 7), (7, 4), (4,), {}),
    "transposed": ((7, 5), (4, 7), (4,), {"transA": 1, "transB": 1}),
    "factors": ((5, 7), (7, 4), (4,), {"alpha": 0.5, "beta": 3.0}),
    "row_bias": ((5, 7), (7, 4), (1, 4), {}),
    "matrix_bias": ((5, 7), (7, 4), (5, 4), {}),
    "column_bias": ((5, 7), (7, 4), (5, 1), {}),
    "scalar_bias": ((5, 7), (7, 4), (), {}),
    "no_bias": ((5, 7), (7, 4), None, {"alpha": 2.0}),
}


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL])
@pytest.mark.parametrize("case", GEMMS)
def test_gemms_of_any_kind(kit: Kit, tmp_path: Path, quant_format: str, granularity: Any, case: str) -> None:
    left, right, bias, attributes = GEMMS[case]
    net = kit.Net()
    inputs = ["x", net.weight(*right), *([] if bias is None else [net.weight(*bias)])]
    model = net.model({"x": left}, net.op("Gemm", *inputs, **attributes))
    quantized = kit.quantize(
        model, kit.plan_for(model, replace(kit.WEIGHT, granularity=granularity)), quant_format=quant_format
    )
    kit.check_close(model, quantized, full_check=quant_format == "QDQ")
    assert kit.executed(quantized, tmp_path)["QGemm"] == 1


@pytest.mark.parametrize("quant_format", FORMATS)
def test_a_gemm_of_two_activations(kit: Kit, tmp_path: Path, quant_format: str) -> None:
    net = kit.Net()
    y = net.op("Gemm", "a", "b", net.weight(4), name="both")
    model = net.model({"a": [5, 7], "b": [7, 4]}, y)
    quantized = kit.quantize(model, quant_format=quant_format)
    kit.check_close(model, quantized, full_check=quant_format == "QDQ")
    assert kit.executed(quantized, tmp_path)["QGemm"] == 1


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("case", ["right", "left", "both_change", "three_axes", "behind_a_transpose"])
def test_products_of_any_kind(kit: Kit, tmp_path: Path, quant_format: str, activation: str, case: str) -> None:
    net = kit.Net()
    inputs = {"x": [3, 4, 6]}
    if case == "right":
        y = net.op("MatMul", "x", net.weight(6, 5))
    elif case == "left":
        y = net.op("MatMul", net.weight(5, 4), "x")
    elif case == "three_axes":
        y = net.op("MatMul", "x", net.weight(3, 6, 5))
    elif case == "behind_a_transpose":
        y = net.op("MatMul", "x", net.op("Transpose", net.weight(5, 6), perm=[1, 0]))
    else:
        inputs["z"] = [3, 6, 5]
        y = net.op("MatMul", "x", "z")
    model = net.model(inputs, y)
    plan = kit.plan_for(model, activation=replace(kit.ACTIVATION, dtype=dtype(activation)))
    quantized = kit.quantize(model, plan, quant_format=quant_format)
    kit.check_close(model, quantized, full_check=quant_format == "QDQ")
    assert kit.executed(quantized, tmp_path)["MatMulIntegerToFloat"] == 1


@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL])
def test_a_table_stays_in_integers_and_what_is_looked_up_is_dequantized(kit: Kit, granularity: Any) -> None:
    net = kit.Net()
    rows = net.op("Gather", net.weight(50, 8), net.constant(np.asarray([[3, 1, 7]])))
    model = net.model({"x": [1, 3, 8]}, net.op("Add", rows, "x"))
    scheme = OpScheme(replace(kit.WEIGHT, granularity=granularity), None, "static")
    quantized = kit.quantize(model, Plan({("Gather_1", "Gather"): scheme}))
    kit.check_close(model, quantized)
    assert [node.op_type for node in quantized.graph] == ["Gather", "DequantizeLinear", "Add"]
    assert quantized.graph[0].inputs[0].dtype == ir.DataType.INT8


def test_one_quantizer_serves_all_readers(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, *(net.conv("x", (3, 4)) for _ in range(3)))
    assert types_of(kit.quantize(model))["QuantizeLinear"] == 1 + 3
    assert types_of(kit.quantize(model, dedicated_qdq_pair=True))["QuantizeLinear"] == 3 + 3


def test_dedicated_pairs_give_the_same(kit: Kit, tmp_path: Path) -> None:
    model = residual_net(kit)
    quantized = kit.quantize(model, dedicated_qdq_pair=True)
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 8
    for node in quantized.graph:
        assert node.op_type != "DequantizeLinear" or len(node.outputs[0].uses()) <= 1


def test_a_relu_before_a_quantizer_is_done_by_it(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Relu", net.conv("x", (3, 4))))
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    assert types_of(quantized)["Relu"] == 0
    assert all(run.min() == 0 for run in kit.run(quantized, kit.feeds_of(model)[0]))


def test_a_relu_on_centred_integers_comes_behind_the_quantizer_so_that_the_convolution_fuses(
    kit: Kit, tmp_path: Path
) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Relu", net.conv("x", (3, 4))), (4, 4)))
    plan = kit.plan_for(model, activation=TensorScheme(dtype("int8"), symmetric=True))
    quantized = kit.quantize(model, plan)
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 2
    elsewhere = kit.quantize(model, plan, target="TensorrtExecutionProvider")
    kit.check_close(model, elsewhere)
    conv = next(node for node in elsewhere.graph if node.op_type == "Conv")
    assert [node.op_type for node in conv.outputs[0].consumers()] == ["Relu"]


def test_weights_may_stay_in_float_behind_a_quantizer(kit: Kit, tmp_path: Path) -> None:
    model = residual_net(kit)
    quantized = kit.quantize(model, add_qdq_pair_to_weight=True, quantize_bias=False)
    kit.check_close(model, quantized)
    conv = next(node for node in quantized.graph if node.op_type == "Conv")
    codes = conv.inputs[1].producer().inputs[0]
    assert codes.producer().op_type == "QuantizeLinear"
    assert codes.producer().inputs[0].is_initializer()
    assert conv.inputs[2].is_initializer()


def test_outputs_of_excluded_types_are_quantized_for_their_readers_only(kit: Kit) -> None:
    net = kit.Net()
    first = net.conv("x", (3, 4))
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(first, (4, 4)))
    quantized = kit.quantize(model, optypes_to_exclude_output_quant=["Conv"])
    kit.check_close(model, quantized)
    assert types_of(quantized)["QuantizeLinear"] == 2
    assert quantized.graph.outputs[0].producer().op_type == "Conv"


def test_the_last_product_may_stay_in_float(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [2, 6]}, net.op("MatMul", net.op("MatMul", "x", net.weight(6, 5)), net.weight(5, 4)))
    plan = kit.plan_for(model)
    quantized = kit.quantize(model, Plan({key: scheme for key, scheme in plan.items() if key[0] != "MatMul_2"}))
    kit.check_close(model, quantized)
    assert [v.is_initializer() for v in quantized.graph.node("MatMul_2").inputs] == [False, True]
    assert not quantized.graph.node("MatMul_1").inputs[1].is_initializer()


def test_the_model_given_is_not_changed(kit: Kit) -> None:
    model = residual_net(kit)
    before = ir.to_proto(model).SerializeToString()
    kit.quantize(model, kit.plan_for(model, activation=TensorScheme(dtype("int16"))))
    kit.quantize(model, quant_format="QOperator")
    assert ir.to_proto(model).SerializeToString() == before


def test_a_second_plan_needs_no_second_calibration(kit: Kit) -> None:
    model = residual_net(kit)
    known: dict[Any, Any] = {}
    samples = Samples(kit.Reader(kit.feeds_of(model)))
    quantize_static(model, kit.plan_for(model), samples, known=known)
    fewer = kit.plan_for(model, op_types=["Conv", "Gemm"])
    quantize_static(model, fewer, samples, known=known)
    signed = kit.plan_for(model, activation=TensorScheme(dtype("int8"), symmetric=False))
    quantize_static(model, signed, samples, known=known)
    assert samples.passes == 1


def test_readers_with_different_schemes_each_get_their_own(kit: Kit) -> None:
    net = kit.Net()
    first = net.conv("x", (3, 4))
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(first, (4, 4)), net.conv(first, (4, 4)), net.conv("x", (3, 4)))
    plan = kit.plan_for(model)
    signed = TensorScheme(dtype("int8"), symmetric=True, algorithm="mse")
    changes = {key: replace(plan[key], activation=signed) for key in list(plan)[2:]}
    quantized = kit.quantize(model, plan.with_ops(changes))
    kit.check_close(model, quantized)
    types = {v.dtype for n in quantized.graph if n.op_type == "QuantizeLinear" for v in n.outputs}
    assert types == {ir.DataType.INT8, ir.DataType.UINT8}


def test_a_weight_of_several_readers(kit: Kit) -> None:
    """One with the same scheme, one with another, one in float, and the model itself."""
    net = kit.Net()
    weight = net.weight(6, 6)
    ys = [net.op("MatMul", "x", weight) for _ in range(4)]
    proto = net.proto({"x": [2, 6]}, *ys)
    proto.graph.output.append(helper.make_tensor_value_info(weight, onnx.TensorProto.FLOAT, [6, 6]))
    model = normalise(read_model(proto))
    plan = kit.plan_for(model)
    other = TensorScheme(dtype("uint8"), symmetric=False)
    plan = Plan({**plan, ("MatMul_3", "MatMul"): replace(plan["MatMul_3", "MatMul"], weight=other)})
    plan = Plan({key: scheme for key, scheme in plan.items() if key[0] != "MatMul_4"})
    quantized = kit.quantize(model, plan)
    kit.check_close(model, quantized)
    codes = [v.dtype for n, v in quantized.graph.initializers.items() if n.startswith(f"{weight}_quantized")]
    assert codes == [ir.DataType.INT8, ir.DataType.UINT8]
    assert quantized.graph.node("MatMul_4").inputs[1].name == weight


def test_subgraphs_stay_in_float_and_find_what_they_capture(kit: Kit) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 4)))
    weight = net.weight(4, 4, 1, 1)

    def branch(op_type: str, *inputs: str) -> onnx.GraphProto:
        node = helper.make_node(op_type, inputs, [f"{op_type}_inner"], name=f"{op_type}_inside")
        out = helper.make_tensor_value_info(f"{op_type}_inner", onnx.TensorProto.FLOAT, None)
        return helper.make_graph([node], op_type, [], [out])

    condition = net.op("Greater", net.op("ReduceSum", "x", keepdims=0), net.constant(0.0))
    chosen = net.op("If", condition, then_branch=branch("Conv", hidden, weight), else_branch=branch("Identity", hidden))
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Conv", chosen, weight))
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    inner = [node for graph in quantized.graph.subgraphs() for node in graph]
    assert {node.op_type for node in inner} == {"Conv", "Identity"}


def test_symbolic_shapes_stay(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": ["batch", 3, "height", "width"]}, net.op("Relu", net.conv("x", (3, 4))))
    quantized = kit.quantize(model)
    feed = {"x": np.random.default_rng(0).normal(size=(3, 3, 9, 5)).astype(np.float32)}
    assert kit.run(quantized, feed)[0].shape == (3, 4, 9, 5)
    assert [str(dim) for dim in quantized.graph.inputs[0].shape] == ["batch", "3", "height", "width"]


def test_what_is_quantized_already_is_left_as_it_is(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Tanh", net.conv("x", (3, 4))), (4, 4)))
    once = kit.quantize(model, kit.plan_for(model, op_types=["Conv"]))
    again = normalise(once.clone())
    assert quantizable_nodes(again) == {}
    plan = kit.plan_for(model)
    half = normalise(kit.quantize(model, Plan({key: plan[key] for key in list(plan)[:1]})))
    rest = kit.quantize(half)
    kit.check_close(model, rest)
    assert types_of(rest)["QuantizeLinear"] == types_of(once)["QuantizeLinear"]


def test_a_tensor_that_is_an_output_and_read_again(kit: Kit) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 4)))
    model = net.model({"x": [1, 3, 6, 6]}, hidden, net.conv(hidden, (4, 4)), net.op("Exp", hidden))
    for quant_format in FORMATS:
        kit.check_close(model, kit.quantize(model, quant_format=quant_format))


def test_light_ops_away_from_integers_are_named_with_the_reason(kit: Kit, tmp_path: Path) -> None:
    net = kit.Net()
    a = net.op("Add", "x", net.op("Tanh", "x"), name="before")
    b = net.op("Mul", net.conv(a, (3, 4)), net.constant(0.5), name="constant")
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Sigmoid", net.conv(net.op("Tanh", b), (4, 4)), name="last"))
    plan = kit.plan_for(model)
    left: dict[OpKey, str] = {}
    quantize_static(model, plan, Samples(kit.Reader(kit.feeds_of(model))), left=left)
    assert "before it" in left["before", "Add"]
    assert "behind it" in left["last", "Sigmoid"]
    assert "weight and bias" in left["constant", "Mul"]
    run = kit.executed(kit.quantize(model), tmp_path)
    assert run["QLinearAdd"] == run["QLinearSigmoid"] == 0
    everywhere = kit.quantize(model, named=[name for name, _ in plan])
    kit.check_close(model, everywhere)
    run = kit.executed(everywhere, tmp_path)
    assert run["QLinearAdd"] == run["QLinearSigmoid"] == 1


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("opset_", [17, 21])
@pytest.mark.parametrize("shape", [(4, 6), ("n", 6), (2, 4, 6), ("n", 4, 6)], ids=str)
def test_a_summand_behind_a_product_does_not_bring_it_back_to_float(
    kit: Kit, tmp_path: Path, quant_format: str, activation: str, opset_: int, shape: tuple[Any, ...]
) -> None:
    net = kit.Net(opset=opset_)
    hidden = net.op("Relu", net.op("Add", net.op("MatMul", "x", net.weight(6, 5)), net.weight(5)))
    model = net.model({"x": shape}, net.op("Add", net.weight(3), net.op("MatMul", hidden, net.weight(5, 3))))
    plan = kit.plan_for(model, activation=TensorScheme(dtype(activation), symmetric=False))
    quantized = kit.quantize(model, plan, quant_format=quant_format)
    kit.check_close(model, quantized, full_check=quant_format == "QDQ")
    run = kit.executed(quantized, tmp_path)
    assert run["QGemm"] + run["QLinearMatMul"] + run["MatMulIntegerToFloat"] == 2
    if len(shape) == 2:
        assert run["QGemm"] == 2
        assert run["Add"] == 0


def test_a_summand_that_widens_the_result_stays(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [4, 6]}, net.op("Add", net.op("MatMul", "x", net.weight(6, 1)), net.weight(5)))
    kit.check_close(model, kit.quantize(model))


@pytest.mark.parametrize("opset_", [13, 17])
def test_hard_swish_between_convolutions_is_one_node_that_dequantizes_once(
    kit: Kit, tmp_path: Path, opset_: int
) -> None:
    net = kit.Net(opset=opset_)
    a = net.conv("x", (3, 4))
    gate = net.op("Clip", net.op("Add", a, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Div", net.op("Mul", a, gate), net.constant(6.0)), (4, 4)))
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    run = kit.executed(quantized, tmp_path)
    assert (run["QLinearConv"], run["DequantizeLinear"], run["QuantizeLinear"]) == (2, 2, 2)
    assert opset(quantized) == max(opset_, 14)


def test_ops_of_the_runtime_in_between_are_no_hindrance(kit: Kit, tmp_path: Path) -> None:
    net = kit.Net()
    hidden = net.op("Gelu", net.op("MatMul", "x", net.weight(8, 8)), domain="com.microsoft")
    proto = net.proto({"x": [2, 8]}, net.op("MatMul", hidden, net.weight(8, 4)))
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 4
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = normalise(read_model(proto))
    quantized = kit.quantize(model)
    kit.check_close(model, quantized, full_check=False)
    assert kit.executed(quantized, tmp_path)["MatMulIntegerToFloat"] == 2


def test_an_integer_softmax_has_integers_for_all_it_may_give(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 4, 6, 6]}, net.conv(net.op("Softmax", net.conv("x", (4, 4)), axis=1), (4, 4)))
    small = [{"x": np.full((1, 4, 6, 6), 1e-3, np.float32)}]
    quantized = quantize_static(model, kit.plan_for(model), Samples(kit.Reader(small)))
    node = quantized.graph.node("Softmax_2").outputs[0].consumers()[0]
    assert float(node.inputs[1].const_value.numpy()) == pytest.approx(1 / 255)
    assert int(node.inputs[2].const_value.numpy()) == 0


def test_dynamic_products_of_attention_fuse(kit: Kit, tmp_path: Path) -> None:
    net = kit.Net()
    q, k, v = (net.op("Add", net.op("MatMul", "x", net.weight(8, 8)), net.weight(8)) for _ in range(3))
    scores = net.op("Softmax", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1])))
    model = net.model({"x": [2, 5, 8]}, net.op("MatMul", net.op("MatMul", scores, v), net.weight(8, 8)))
    for quant_format in FORMATS:
        quantized = kit.quantize(model, quant_format=quant_format)
        kit.check_close(model, quantized, full_check=quant_format == "QDQ")
        run = kit.executed(quantized, tmp_path)
        # With the sizes known, the runtime makes a Gemm of a product and the summand behind it.
        assert run["MatMulIntegerToFloat"] + run["QLinearMatMul"] + run["QGemm"] == 6
        assert run["MatMul"] + run["Gemm"] == 0


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'QDQ'"):
        StaticOptions(quant_format="QDQQ")
    with pytest.raises(ConfigError, match="add_qdq_pair_to_weight"):
        StaticOptions(quant_format="QOperator", add_qdq_pair_to_weight=True)
    with pytest.raises(ConfigError, match="dedicated_qdq_pair goes with"):
        StaticOptions(quant_format="QOperator", dedicated_qdq_pair=True)
    with pytest.raises(ConfigError, match="Relu"):
        StaticOptions(optypes_to_exclude_output_quant=["Relu"])


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
def test_equal_constants_are_stored_once_and_a_bias_has_no_zero_point(kit: Kit, quant_format: str) -> None:
    net = kit.Net()
    a = net.op("Relu", net.conv("x", (4, 4)))
    model = net.model({"x": [1, 4, 6, 6]}, net.conv(net.conv(a, (4, 4)), (4, 4)))
    quantized = kit.quantize(model, quant_format=quant_format)
    arrays = [v.const_value.numpy() for v in quantized.graph.initializers.values()]
    assert len({(a.dtype, a.shape, a.tobytes()) for a in arrays}) == len(arrays)
    assert not [a for a in arrays if a.dtype == np.int32 and not a.any()]
    kit.check_close(model, quantized)
