"""Dynamic quantization: the runtime computes what the codes in the graph say, in the kernels meant for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.dynamic import dynamic_nodes, quantize_dynamic
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    OpScheme,
    PerChannel,
    PerGroup,
    Plan,
    TensorScheme,
    any_cpu_weight,
    fake_quantize,
    in_pairs,
    quantize_pairs,
)

UINT8 = TensorScheme(dtype("uint8"), symmetric=False)
SYM = TensorScheme(dtype("int8"))
SCHEMES = {
    "int8 tensor": SYM,
    "int8 channel": replace(SYM, granularity=PER_CHANNEL),
    "int8 asym": replace(SYM, symmetric=False),
    "uint8 asym": UINT8,
    "int8 channel reduced": replace(SYM, granularity=PER_CHANNEL, reduce_range=True),
}
# What products take for the same on every CPU.
SAFE = {name: any_cpu_weight(scheme) if scheme.dtype.signed else scheme for name, scheme in SCHEMES.items()}
SAFE_SYM = SAFE["int8 tensor"]
KINDS = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("int32"): TensorProto.INT32,
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(
    nodes: list[Any], feeds: dict[str, np.ndarray], outputs: dict[str, int], **weights: np.ndarray
) -> ir.Model:
    inputs = [helper.make_tensor_value_info(name, KINDS[array.dtype], array.shape) for name, array in feeds.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in outputs.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return normalise(read_model(helper.make_model(graph, opset_imports=imports, ir_version=8)))


def plan_for(model: ir.Model, weight: TensorScheme = SAFE_SYM) -> Plan:
    return Plan({key: OpScheme(weight, UINT8, "dynamic") for key, why in dynamic_nodes(model).items() if why is None})


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the model gives, which must be the same with and without optimization."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    plain, optimized = (make_session(model, level=level).run(None, feeds) for level in ("none", "all"))
    for one, other in zip(plain, optimized, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    return optimized


def kernels(model: ir.Model, folder: Any) -> list[str]:
    make_session(model, optimized_path=str(folder / "optimized.onnx"))
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def seen_as_uint8(x: np.ndarray) -> np.ndarray:
    """DynamicQuantizeLinear as its document has it, and back to floats."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.round(-low / scale), 0, 255)
    return ((np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def rounded(weight: np.ndarray, scheme: TensorScheme, axis: int) -> np.ndarray:
    if scheme.pair_safe:
        rows = np.moveaxis(weight, axis, 0)
        safe = quantize_pairs(rows, scheme, in_pairs(rows.shape[1]))
        return np.moveaxis(np.asarray(safe.codes * np.reshape(safe.scale, (-1, 1))), 0, axis)
    if scheme.granularity is PER_CHANNEL:
        scheme = replace(scheme, granularity=PerChannel(axis))
    return np.asarray(fake_quantize(weight, scheme))


def close(actual: np.ndarray, wanted: np.ndarray, relative: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, wanted, atol=relative * np.abs(wanted).max())


# -- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SAFE.values(), ids=SAFE)
@pytest.mark.parametrize("shape", [(5, 40), (2, 5, 40)])
def test_a_product_multiplies_the_codes(scheme: TensorScheme, shape: tuple[int, ...], tmp_path: Any) -> None:
    weight, feeds = normal(40, 12), {"x": normal(*shape, seed=1) + 0.5}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], feeds, {"y": len(shape)}, w=weight)
    quantized = quantize_dynamic(model, plan_for(model, scheme))
    close(run(quantized, feeds)[0], seen_as_uint8(feeds["x"]) @ rounded(weight, scheme, axis=1))
    assert kernels(quantized, tmp_path) == ["DynamicQuantizeMatMul"]
    assert "w" not in quantized.graph.initializers


def test_nodes_that_share_an_input_quantize_it_once(tmp_path: Any) -> None:
    feeds = {"x": normal(5, 40)}
    names = "abc"
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [n], name=n) for n in names]
    weights = {f"w{n}": normal(40, 8, seed=i) for i, n in enumerate(names)}
    model = model_of(nodes, feeds, dict.fromkeys(names, 2), **weights)
    quantized = quantize_dynamic(model, plan_for(model))
    for result, weight in zip(run(quantized, feeds), weights.values(), strict=True):
        close(result, seen_as_uint8(feeds["x"]) @ rounded(weight, SAFE_SYM, 1))
    assert kernels(quantized, tmp_path) == ["DynamicQuantizeLinear", *["MatMulIntegerToFloat"] * 3]


def test_nodes_that_share_a_weight_share_its_codes() -> None:
    feeds, weight = {"x": normal(5, 16)}, normal(16, 16)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="b"),
    ]
    model = model_of(nodes, feeds, {"y": 2}, w=weight)
    quantized = quantize_dynamic(model, plan_for(model))
    matrix = rounded(weight, SAFE_SYM, 1)
    close(run(quantized, feeds)[0], seen_as_uint8(seen_as_uint8(feeds["x"]) @ matrix) @ matrix, 1e-2)
    assert sum(value.dtype == ir.DataType.INT8 for value in quantized.graph.initializers.values()) == 1
    assert all(
        len(node.inputs) == 3 for node in quantized.graph if node.op_type == "MatMulInteger"
    )  # no zero points of 0


@pytest.mark.parametrize("bias", [None, (12,), (1, 12), (5, 12), ()], ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b", "alpha", "beta"), [(0, 0, 1.0, 1.0), (1, 1, 0.5, 2.0)])
def test_gemm_keeps_all_it_does(
    trans_a: int, trans_b: int, alpha: float, beta: float, bias: tuple[int, ...] | None, tmp_path: Any
) -> None:
    weight, x = normal(40, 12), normal(5, 40, seed=1)
    feeds = {"x": np.ascontiguousarray(x.T) if trans_a else x}
    constants = {"w": np.ascontiguousarray(weight.T) if trans_b else weight}
    term = None if bias is None else np.asarray(normal(*bias, seed=2), dtype=np.float32)
    constants |= {} if term is None else {"c": term}
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    node = helper.make_node("Gemm", ["x", *constants], ["y"], name="gemm", **attributes)
    model = model_of([node], feeds, {"y": 2}, **constants)
    scheme = SAFE["int8 channel"]
    quantized = quantize_dynamic(model, plan_for(model, scheme))
    wanted = seen_as_uint8(x) @ rounded(alpha * weight, scheme, 1)
    close(run(quantized, feeds)[0], wanted if term is None else wanted + beta * term)
    assert "DynamicQuantizeMatMul" in kernels(quantized, tmp_path)


# -- other ops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("scheme", [SCHEMES["int8 channel"], UINT8], ids=["int8 channel", "uint8 asym"])
def test_a_convolution_multiplies_the_codes(scheme: TensorScheme, dimensions: int) -> None:
    feeds = {"x": normal(2, 4, *[7] * dimensions) + 1}
    weights = {"w": normal(6, 2, *[3] * dimensions, seed=1), "c": normal(6, seed=2)}
    attributes = {"pads": [1] * 2 * dimensions, "strides": [2] * dimensions, "group": 2}

    def conv(**given: np.ndarray) -> ir.Model:
        node = helper.make_node("Conv", ["x", "w", "c"], ["y"], name="conv", **attributes)
        return model_of([node], feeds, {"y": dimensions + 2}, **given)

    quantized = quantize_dynamic(conv(**weights), plan_for(conv(**weights), scheme))
    assert "ConvInteger" in [node.op_type for node in quantized.graph]
    same = conv(w=rounded(weights["w"], scheme, 0), c=weights["c"])
    wanted = make_session(same).run(None, {"x": seen_as_uint8(feeds["x"])})[0]
    close(run(quantized, feeds)[0], wanted)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("scheme", [SAFE["int8 channel"], SAFE_SYM, UINT8], ids=["int8 channel", "int8", "uint8 asym"])
def test_an_lstm_has_quantized_gates(scheme: TensorScheme, direction: str) -> None:
    hidden, count = 8, 2 if direction == "bidirectional" else 1
    feeds = {"x": normal(6, 3, 20)}
    weights = {"w": 0.3 * normal(count, 4 * hidden, 20, seed=1), "r": 0.3 * normal(count, 4 * hidden, hidden, seed=2)}
    weights["b"] = 0.1 * normal(count, 8 * hidden, seed=3)

    def lstm(**given: np.ndarray) -> ir.Model:
        node = helper.make_node(
            "LSTM", ["x", "w", "r", "b"], ["y", "", "c"], name="lstm", hidden_size=hidden, direction=direction
        )
        return model_of([node], feeds, {"y": 4, "c": 3}, **given)

    quantized = quantize_dynamic(lstm(**weights), plan_for(lstm(**weights), scheme))
    assert [node.op_type for node in quantized.graph] == ["DynamicQuantizeLSTM"]
    each = {name: np.stack([rounded(one, scheme, 0) for one in weights[name]]) for name in "wr"}
    wanted = make_session(lstm(**each, b=weights["b"])).run(None, {"x": seen_as_uint8(feeds["x"])})
    for result, same in zip(run(quantized, feeds), wanted, strict=True):
        close(result, same, 0.01)  # what is left is the rounding of the states to 8 bits at each step


@pytest.mark.parametrize("scheme", SAFE.values(), ids=SAFE)
@pytest.mark.parametrize("has_bias", [True, False])
def test_attention_has_quantized_weights(scheme: TensorScheme, has_bias: bool) -> None:
    feeds = {"x": normal(2, 5, 16), "mask": np.asarray([[1] * 5, [1] * 3 + [0] * 2], np.int32)}
    weight, bias = 0.3 * normal(16, 48, seed=1), normal(48, seed=2) if has_bias else np.zeros(48, np.float32)

    def attention(weight: np.ndarray, with_bias: bool) -> ir.Model:
        inputs = ["x", "w", "c" if with_bias else "", "mask"]
        node = helper.make_node("Attention", inputs, ["y"], name="attend", domain="com.microsoft", num_heads=2)
        return model_of([node], feeds, {"y": 3}, w=weight, **({"c": bias} if with_bias else {}))

    model = attention(weight, has_bias)
    quantized = quantize_dynamic(model, plan_for(model, scheme))
    assert [node.op_type for node in quantized.graph] == ["DynamicQuantizeLinear", "QAttention"]
    same = make_session(attention(rounded(weight, scheme, 1), True))
    wanted = same.run(None, feeds | {"x": seen_as_uint8(feeds["x"])})[0]
    close(run(quantized, feeds)[0], wanted, 1e-4)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_table_holds_codes(scheme: TensorScheme) -> None:
    table, feeds = normal(9, 12), {"ids": np.asarray([[0, 8], [-1, 3]])}
    model = model_of([helper.make_node("Gather", ["t", "ids"], ["y"], name="look")], feeds, {"y": 3}, t=table)
    quantized = quantize_dynamic(model, plan_for(model, scheme))
    np.testing.assert_allclose(run(quantized, feeds)[0], rounded(table, scheme, 1)[feeds["ids"]], rtol=1e-6)
    assert "t" not in quantized.graph.initializers


def test_a_reduced_range_leaves_the_top_bit() -> None:
    feeds = {"x": normal(5, 40)}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], feeds, {"y": 2}, w=normal(40, 12))
    quantized = quantize_dynamic(model, plan_for(model, SCHEMES["int8 channel reduced"]))
    codes = quantized.graph.initializers["w_quantized"].const_value.numpy()
    assert codes.dtype == np.int8
    assert -64 <= codes.min() < -60
    assert 60 < codes.max() <= 64


def test_ops_in_other_modes_and_the_model_given_stay() -> None:
    feeds = {"x": normal(5, 16)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="b"),
    ]
    model = model_of(nodes, feeds, {"y": 2}, w=normal(16, 16))
    before = ir.to_proto(model).SerializeToString()
    plan = plan_for(model).with_ops({("b", "MatMul"): OpScheme()})
    quantized = quantize_dynamic(model, plan)
    assert [n.op_type for n in quantized.graph if n.op_type.startswith("MatMul")] == ["MatMulInteger", "MatMul"]
    assert ir.to_proto(model).SerializeToString() == before
    close(run(quantized, feeds)[0], seen_as_uint8(feeds["x"]) @ rounded(normal(16, 16), SAFE_SYM, 1) @ normal(16, 16))


# -- what is refused -------------------------------------------------------------------------------------------------


def test_every_candidate_has_a_reason_or_none() -> None:
    feeds = {"x": normal(3, 4), "h": normal(3, 1, 8), "v": normal(1, 3, 4)}
    sizes = {"num_heads": 2, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="good"),
        helper.make_node("MatMul", ["a", "a"], ["y"], name="computed"),
        helper.make_node("LSTM", ["h", "lw", "lr"], ["l"], name="batch", hidden_size=2, layout=1),
        helper.make_node("Attention", ["v", "aw", "ab"], ["z"], name="uneven", qkv_hidden_sizes=[4, 4, 2], **sizes),
        helper.make_node("Attention", ["v", "aw", "ab", "", "", "bias"], ["u"], name="biased", **sizes),
    ]
    weights = {"w": normal(4, 3), "lw": normal(1, 8, 8), "lr": normal(1, 8, 2), "aw": normal(4, 12), "ab": normal(12)}
    proto_weights = weights | {"bias": normal(1, 2, 3, 3)}
    model = model_of(nodes, feeds, {"y": 2, "l": 4, "z": 3, "u": 3}, **proto_weights)
    found = dynamic_nodes(model)
    assert found["good", "MatMul"] is None
    assert "not a constant" in str(found["computed", "MatMul"])
    assert "layout" in str(found["batch", "LSTM"])
    assert "[4, 4, 2]" in str(found["uneven", "Attention"])
    assert "attention bias" in str(found["biased", "Attention"])
    with pytest.raises(QuantizationError, match=r"node 'computed': it cannot be quantized dynamically: .*constant"):
        quantize_dynamic(model, Plan({("computed", "MatMul"): OpScheme(SYM, UINT8, "dynamic")}))
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        quantize_dynamic(model, Plan({("goood", "MatMul"): OpScheme(SYM, UINT8, "dynamic")}))


def test_schemes_that_no_kernel_has_are_named() -> None:
    feeds = {"x": normal(1, 4, 7, 7)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    model = model_of([node], feeds, {"y": 4}, w=normal(6, 4, 3, 3))

    def quantize(weight: TensorScheme | None, activation: TensorScheme = UINT8) -> None:
        quantize_dynamic(model, Plan({("conv", "Conv"): OpScheme(weight, activation, "dynamic")}))

    with pytest.raises(ConfigError, match="node 'conv': a weight is int8 or uint8 here, not int4"):
        quantize(TensorScheme(dtype("int4")))
    with pytest.raises(ConfigError, match="not per_group ones"):
        quantize(replace(SYM, granularity=PerGroup(32)))
    with pytest.raises(ConfigError, match="are uint8 asym, not int8 sym"):
        quantize(SYM, TensorScheme(dtype("int8")))
    with pytest.raises(QuantizationError, match="node 'conv': the kernel takes one zero point"):
        quantize(replace(UINT8, granularity=PER_CHANNEL))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_named(bad: float) -> None:
    feeds, weight = {"x": normal(5, 16)}, normal(16, 16)
    weight[2, 3] = bad
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], feeds, {"y": 2}, w=weight)
    for granularity in (PER_TENSOR, PER_CHANNEL):
        with pytest.raises(QuantizationError, match=r"node 'mm': .*NaN or Inf"):
            quantize_dynamic(model, plan_for(model, replace(SYM, granularity=granularity)))
