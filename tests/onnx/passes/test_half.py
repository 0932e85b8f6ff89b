"""Models in fp16 and bf16: as exact as the type, the same from outside, float32 where the type is not defined."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.passes.half import to_half
from neural_compressor.onnx.runtime.session import make_session

UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8}
KIND = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
info = helper.make_tensor_value_info


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def proto_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: np.ndarray) -> ir.Model:
    return normalise(read_model(proto_of(nodes, inputs, outputs, **weights)))


X = info("x", TensorProto.FLOAT, ["n", 16])
Y = info("y", TensorProto.FLOAT, ["n", 8])
FEED = {"x": normal(5, 16, seed=7)}


def perceptron() -> ir.Model:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w"], ["h"], name="mm"),
        helper.make_node("Tanh", ["h"], ["t"], name="tanh"),
        helper.make_node("Gemm", ["t", "v", "c"], ["y"], name="gemm"),
    ]
    weights = {"g": normal(16), "b": normal(16, seed=1), "w": 0.3 * normal(16, 16, seed=2), "v": normal(16, 8, seed=3)}
    return model_of(nodes, [X], [Y], **weights, c=normal(8, seed=4))


def run(model: ir.Model, feed: dict[str, np.ndarray], level: str = "all") -> list[np.ndarray]:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model, level=level).run(None, feed)


def types_of(model: ir.Model) -> dict[str, set[str]]:
    """The types of what each node computes with, floats alone."""
    found: dict[str, set[str]] = {}
    for node in model.graph:
        kinds = {v.dtype.name for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None}
        found[str(node.name)] = {kind for kind in kinds if "FLOAT" in kind}
    return found


def test_a_model_in_fp16_is_as_exact_as_the_type() -> None:
    model = perceptron()
    wanted = run(model, FEED)[0]
    half = to_half(model, "fp16")
    for level in ("none", "all"):
        result = run(half, FEED, level)[0]
        assert result.dtype == np.float32
        assert 0 < np.abs(result - wanted).max() < 20 * UNIT["fp16"] * np.abs(wanted).max()
    assert all(value.dtype == ir.DataType.FLOAT16 for value in half.graph.initializers.values())
    kinds = types_of(half)
    assert all(kinds[name] == {"FLOAT16"} for name in ("norm", "mm", "tanh", "gemm"))


def test_a_model_in_bf16_is_as_exact_as_the_type() -> None:
    """Read by the reference, since the runtime has few kernels for bf16 on CPUs."""
    model = perceptron()
    half = to_half(model, "bf16")
    onnx.checker.check_model(ir.to_proto(half), full_check=True)
    wanted = run(model, FEED)[0]
    result = np.asarray(ReferenceEvaluator(ir.to_proto(half)).run(None, FEED)[0])
    assert np.abs(result - wanted).max() < 20 * UNIT["bf16"] * np.abs(wanted).max()
    assert all(value.dtype == ir.DataType.BFLOAT16 for value in half.graph.initializers.values())


@pytest.mark.parametrize("name", UNIT)
def test_weights_alone_are_half_the_size_and_run_anywhere(name: str, tmp_path: Any) -> None:
    model = perceptron()
    wanted = run(model, FEED)[0]
    half = to_half(model, name, weights_only=True)
    for level in ("none", "all"):
        assert np.abs(run(half, FEED, level)[0] - wanted).max() < 20 * UNIT[name] * np.abs(wanted).max()
    matrices = [v for v in half.graph.initializers.values() if len(v.shape or ()) == 2]
    assert {v.dtype for v in matrices} == {KIND[name]}
    assert {v.dtype for v in half.graph.initializers.values() if v not in matrices} == {ir.DataType.FLOAT}
    kept = to_half(model, name, keep=["mm"], weights_only=True)
    assert kept.graph.initializers["w"].dtype == ir.DataType.FLOAT
    write_model(half, tmp_path / "half.onnx")
    np.testing.assert_array_equal(run(read_model(tmp_path / "half.onnx"), FEED)[0], run(half, FEED)[0])


def test_named_nodes_stay_in_float32() -> None:
    model = perceptron()
    half = to_half(model, "float16", keep=["mm"])
    kinds = types_of(half)
    assert kinds["mm"] == {"FLOAT"}
    assert kinds["tanh"] == {"FLOAT16"}
    assert half.graph.initializers["w"].dtype == ir.DataType.FLOAT
    wanted = run(model, FEED)[0]
    assert np.abs(run(half, FEED)[0] - wanted).max() < 20 * UNIT["fp16"] * np.abs(wanted).max()


def test_inputs_that_must_be_float32_stay_so() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "s"], ["y"], name="resize", mode="linear")]
    image = info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    model = model_of(nodes, [image], [info("y", TensorProto.FLOAT, [1, 1, 8, 8])], s=np.float32([1, 1, 2, 2]))
    half = to_half(model, "fp16")
    assert half.graph.initializers["s"].dtype == ir.DataType.FLOAT
    feed = {"x": normal(1, 1, 4, 4)}
    np.testing.assert_allclose(run(half, feed)[0], run(model, feed)[0], atol=0.01)


def test_ops_the_type_is_not_defined_for_stay_in_float32() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Det", ["h"], ["d"], name="det"),
        helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "qs", "qz"], name="dynamic"),
        helper.make_node("DequantizeLinear", ["q", "qs", "qz"], ["y"], name="back"),
    ]
    inputs = [info("x", TensorProto.FLOAT, [16, 16])]
    model = model_of(
        nodes,
        inputs,
        [info("y", TensorProto.FLOAT, [16, 16]), info("d", TensorProto.FLOAT, [])],
        w=0.3 * normal(16, 16),
    )
    half = to_half(model, "bf16")  # Det takes fp16 but not bf16
    kinds = types_of(half)
    assert kinds["mm"] == {"BFLOAT16"}
    assert kinds["det"] == kinds["dynamic"] == kinds["back"] == {"FLOAT"}
    onnx.checker.check_model(ir.to_proto(half), full_check=True)


def test_whole_numbers_are_cast_to_half_at_once() -> None:
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], name="cast", to=1),
        helper.make_node("Mul", ["f", "s"], ["y"], name="mul"),
    ]
    model = model_of(
        nodes, [info("i", TensorProto.INT64, [3])], [info("y", TensorProto.FLOAT, [3])], s=np.float32([0.5])
    )
    half = to_half(model, "fp16")
    assert [n.op_type for n in half.graph] == ["Cast", "Mul", "Cast"]
    np.testing.assert_array_equal(run(half, {"i": np.asarray([1, 2, 3])})[0], [0.5, 1, 1.5])


def test_branches_stay_in_float32_and_see_what_they_saw() -> None:
    output = info("b", TensorProto.FLOAT, [5, 8])
    branches = {
        "then_branch": helper.make_graph([helper.make_node("Mul", ["h", "two"], ["b"], name="t")], "t", [], [output]),
        "else_branch": helper.make_graph([helper.make_node("Add", ["h", "h"], ["b"], name="e")], "e", [], [output]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("If", ["flag"], ["i"], name="if", **branches),
        helper.make_node("Add", ["i", "two"], ["y"], name="add"),
    ]
    inputs = [X, info("flag", TensorProto.BOOL, [])]
    model = model_of(nodes, inputs, [Y, info("h", TensorProto.FLOAT, [None, 8])], w=normal(16, 8), two=np.float32(2))
    half = to_half(model, "fp16")
    for flag in (True, False):
        feed = FEED | {"flag": np.asarray(flag)}
        for result, wanted in zip(run(half, feed), run(model, feed), strict=True):
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, wanted, atol=20 * UNIT["fp16"] * np.abs(wanted).max())


def test_types_pass_through_operators_of_the_runtime() -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], name="gelu", domain="com.microsoft"),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="mm"),
    ]
    model = model_of(nodes, [X], [Y], w=normal(16, 8))
    half = to_half(model, "fp16")
    kinds = types_of(half)
    assert kinds["gelu"] == kinds["mm"] == {"FLOAT16"}
    np.testing.assert_allclose(run(half, FEED)[0], run(model, FEED)[0], atol=0.03)


@pytest.mark.parametrize(("name", "largest"), [("fp16", 65504.0), ("bf16", 3.3895314e38)])
def test_weights_too_large_become_the_largest_number(name: str, largest: float, caplog: Any) -> None:
    mask = np.float32([np.finfo(np.float32).min, 0, 1, -np.inf, 7])
    nodes = [helper.make_node("Add", ["x", "m"], ["y"], name="add")]
    model = model_of(nodes, [info("x", TensorProto.FLOAT, [5])], [info("y", TensorProto.FLOAT, [5])], m=mask)
    half = to_half(model, name)
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        stored = half.graph.initializers["m_half"].const_value.numpy().astype(np.float64)
    np.testing.assert_allclose(stored, [-largest, 0, 1, -np.inf, 7], rtol=1e-6)
    assert "m: values beyond" in caplog.text


def test_the_model_given_stays_and_other_types_are_refused() -> None:
    model = perceptron()
    before = ir.to_proto(model).SerializeToString()
    to_half(model, "fp16")
    to_half(model, "bf16", weights_only=True)
    assert ir.to_proto(model).SerializeToString() == before
    with pytest.raises(ConfigError, match="to fp16 or bf16, not to int8"):
        to_half(model, "int8")


def test_weights_of_a_file_are_converted_when_they_are_read(tmp_path: Any) -> None:
    proto = proto_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [X], [Y], w=normal(16, 8))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    model = normalise(read_model(tmp_path / "m.onnx"))
    half = to_half(model, "fp16")
    assert isinstance(half.graph.initializers["w_half"].const_value, ir.LazyTensor)
    write_model(half, tmp_path / "half.onnx")
    stored = read_model(tmp_path / "half.onnx").graph.initializers["w_half"].const_value
    assert stored is not None
    np.testing.assert_array_equal(stored.numpy(), normal(16, 8).astype(np.float16))


def gelu_by_tanh() -> list[Any]:
    """What exporters make of a GELU: a cube that fp16 does not hold, though it holds what goes in and comes out."""
    return [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Mul", ["c", "h"], ["a"], name="factor"),
        helper.make_node("Mul", ["h", "a"], ["s"], name="square"),
        helper.make_node("Mul", ["s", "h"], ["q"], name="cube"),
        helper.make_node("Add", ["h", "q"], ["r"], name="sum"),
        helper.make_node("Tanh", ["r"], ["t"], name="tanh"),
        helper.make_node("Mul", ["h", "t"], ["y"], name="gate"),
    ]


def root_mean_square() -> list[Any]:
    """A normalisation written out, of values whose squares fp16 does not hold."""
    return [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Mul", ["h", "h"], ["s"], name="square"),
        helper.make_node("ReduceMean", ["s"], ["m"], name="mean", axes=[-1]),
        helper.make_node("Add", ["m", "c"], ["e"], name="epsilon"),
        helper.make_node("Sqrt", ["e"], ["r"], name="root"),
        helper.make_node("Div", ["h", "r"], ["y"], name="scaled"),
    ]


@pytest.mark.parametrize(("nodes", "far"), [
    (gelu_by_tanh(), {"square", "cube", "sum", "tanh"}),
    (root_mean_square(), {"square", "mean", "epsilon", "root"}),
])  # fmt: skip
def test_powers_and_what_brings_them_back_stay_in_float32(nodes: list[Any], far: set[str]) -> None:
    model = model_of(nodes, [X], [Y], w=120 * normal(16, 8), c=np.float32([0.04]))
    half = to_half(model, "fp16")
    kinds = types_of(half)
    assert {name for name in kinds if kinds[name] == {"FLOAT"}} == far
    wanted = run(model, FEED)[0]
    result = np.asarray(ReferenceEvaluator(ir.to_proto(half)).run(None, FEED)[0])
    assert np.abs(result - wanted).max() < 20 * UNIT["fp16"] * np.abs(wanted).max()
    whole = types_of(to_half(model, "bf16"))
    assert all(whole[name] == {"BFLOAT16"} for name in far)


def test_gates_are_no_powers() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Sigmoid", ["h"], ["s"], name="sigmoid"),
        helper.make_node("Mul", ["h", "s"], ["y"], name="gate"),
    ]
    kinds = types_of(to_half(model_of(nodes, [X], [Y], w=normal(16, 8)), "fp16"))
    assert all(kinds[name] == {"FLOAT16"} for name in ("mm", "sigmoid", "gate"))
