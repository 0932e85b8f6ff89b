"""Weights quantized by themselves: what the graph holds is what the algorithms gave, and the runtime computes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.graph.matrix_nodes import left_in_float, weight_only_nodes
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.weight_only.method import WeightOnlyOptions, check_weight_only
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, Method, OpScheme, PerGroup, TensorScheme

FORMATS = ("QOperator", "QDQ")
EXACT = {name: WeightOnlyOptions(quant_format=name, accuracy_level=1) for name in FORMATS}
INT4 = TensorScheme(dtype("int4"), granularity=PerGroup(32))


def weight_only(method: str, weight: TensorScheme, options: Mapping[str, Any] | None = None) -> OpScheme:
    return OpScheme(weight, mode="weight_only", method=Method(method, options or {}))


KINDS = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("bool"): TensorProto.BOOL,
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def proto_of(
    nodes: list[Any], feeds: dict[str, np.ndarray], outputs: dict[str, int], **weights: Any
) -> onnx.ModelProto:
    """A model whose inputs are those of ``feeds`` and whose outputs have the ranks given."""
    inputs = [
        helper.make_tensor_value_info(n, KINDS.get(a.dtype, TensorProto.FLOAT16), a.shape) for n, a in feeds.items()
    ]
    kind = KINDS.get(next(iter(feeds.values())).dtype, TensorProto.FLOAT16)
    kind = TensorProto.FLOAT if kind in (TensorProto.INT64, TensorProto.BOOL) else kind
    results = [helper.make_tensor_value_info(n, kind, [None] * rank) for n, rank in outputs.items()]
    tensors = [t if isinstance(t, onnx.TensorProto) else numpy_helper.from_array(t, n) for n, t in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model_of(nodes: list[Any], feeds: dict[str, np.ndarray], outputs: dict[str, int], **weights: Any) -> ir.Model:
    return normalise(read_model(proto_of(nodes, feeds, outputs, **weights)))


def product(weight: np.ndarray, rows: int = 3) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A MatMul named mm with ``weight`` (inputs, outputs), and what to feed it."""
    feeds = {"x": normal(rows, weight.shape[0], seed=9)}
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], feeds, {"y": 2}, w=weight), feeds


def run(model: ir.Model, feeds: dict[str, np.ndarray], level: str = "all") -> list[np.ndarray]:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model, level=level).run(None, feeds)


def node_named(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def array(node: ir.Node, place: int) -> np.ndarray:
    value = node.inputs[place]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def decoded(node: ir.Node) -> np.ndarray:
    """The matrix (outputs, inputs) of a MatMulNBits or GatherBlockQuantized, read bit by bit as their documents say."""
    is_table = node.op_type == "GatherBlockQuantized"
    codes, scales = array(node, 0 if is_table else 1), array(node, 2)
    bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block_size")
    inputs = codes.shape[-1] * 8 // bits if is_table else node.attributes.get_int("K")

    def unpack(packed: np.ndarray) -> np.ndarray:
        flat = packed.reshape(packed.shape[0], -1).astype(int)
        return np.stack([flat >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)], -1).reshape(len(flat), -1)

    zeros = np.full(scales.shape, 1 << (bits - 1), np.float32)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        stored = array(node, 3)
        zeros = (unpack(stored)[:, : scales.shape[1]] if stored.dtype == np.uint8 else stored).astype(np.float32)
    places = np.arange(inputs) // block
    return ((unpack(codes)[:, :inputs] - zeros[:, places]) * scales[:, places]).astype(np.float32)


def rounded_inputs(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """How far a product may go off where each input is rounded to a 127th of the largest: half a step each."""
    return np.abs(x).max() / 254 * np.abs(matrix).sum(1) * 1.01


def assert_within(actual: np.ndarray, wanted: np.ndarray, bound: Any) -> None:
    assert (np.abs(actual - wanted) <= bound).all(), np.max(np.abs(actual - wanted) - bound)


def expected(weight: np.ndarray, job: OpScheme) -> np.ndarray:
    assert job.method is not None
    options = {"integer_zero": True} if job.method.name == "hqq" else {}
    found = ALGORITHMS[job.method.name](weight, job.weight, None, **options | dict(job.method.options))
    return np.asarray(found.dequantize())


CASES = [
    *(("rtn", kind, True, PerGroup(32)) for kind in ("int1", "int2", "int3", "int4", "int5", "int8", "uint4", "uint8")),
    *(
        ("rtn", kind, False, PerGroup(32))
        for kind in ("int2", "uint2", "uint3", "int4", "uint4", "uint6", "int8", "uint8")
    ),
    *(("rtn", "int4", True, granularity) for granularity in (PerGroup(16), PerGroup(64), PerGroup(48), PerGroup(512))),
    *(("rtn", "uint4", False, granularity) for granularity in (PER_CHANNEL, PER_TENSOR, PerGroup(1024))),
    *(("hqq", kind, False, PerGroup(64)) for kind in ("uint2", "int4", "uint4", "uint8")),
]


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(("algorithm", "kind", "symmetric", "granularity"), CASES, ids=str)
def test_the_graph_computes_with_what_the_algorithm_gave(
    algorithm: str, kind: str, symmetric: bool, granularity: Any, quant_format: str
) -> None:
    weight = normal(200, 24)  # 200 inputs are no multiple of any group
    model, feeds = product(weight)
    job = weight_only(algorithm, TensorScheme(dtype(kind), symmetric, granularity))
    quantized = quantize_weight_only(model, {"mm": job}, options=EXACT[quant_format])
    matrix = expected(weight.T, job)
    if quant_format == "QOperator":
        np.testing.assert_array_equal(decoded(node_named(quantized, "mm")), matrix)
    else:
        np.testing.assert_array_equal(run(quantized, {"x": np.eye(200, dtype=np.float32)[:3]}, "none")[0], matrix.T[:3])
    reach = np.abs(feeds["x"]) @ np.abs(matrix.T)
    assert_within(run(quantized, feeds, "none")[0], feeds["x"] @ matrix.T, 1e-5 * reach)
    # Fused, DequantizeLinear becomes a product with inputs in int8, rounded block by block.
    rounding = 0 if quant_format == "QOperator" else rounded_inputs(feeds["x"], matrix)
    assert_within(run(quantized, feeds)[0], feeds["x"] @ matrix.T, rounding + 1e-5 * reach)


@pytest.mark.parametrize("kind", ["int2", "int4", "int8"])
def test_inputs_rounded_to_int8_cost_no_more_than_their_rounding(kind: str) -> None:
    weight = normal(128, 32)
    model, feeds = product(weight)
    job = weight_only("rtn", TensorScheme(dtype(kind), granularity=PerGroup(64)))
    quantized = quantize_weight_only(model, {"mm": job})
    node = node_named(quantized, "mm")
    assert node.attributes.get_int("accuracy_level") == 4
    matrix = decoded(node)
    for level in ("none", "all"):
        assert_within(run(quantized, feeds, level)[0], feeds["x"] @ matrix.T, rounded_inputs(feeds["x"], matrix))


def test_the_runtime_decides_at_accuracy_level_zero() -> None:
    model, _ = product(normal(32, 8))
    quantized = quantize_weight_only(
        model, {"mm": weight_only("rtn", INT4)}, options=WeightOnlyOptions(accuracy_level=0)
    )
    assert node_named(quantized, "mm").attributes.get_int("accuracy_level") == 0


def test_a_symmetric_weight_needs_no_zero_points() -> None:
    model, _ = product(normal(64, 8))
    for quant_format, inputs in zip(FORMATS, (3, 2), strict=True):
        quantized = quantize_weight_only(model, {"mm": weight_only("rtn", INT4)}, options=EXACT[quant_format])
        node = next(n for n in quantized.graph if n.op_type in ("MatMulNBits", "DequantizeLinear"))
        assert len(node.inputs) == inputs


def test_qdq_in_blocks_is_fused(tmp_path: Any) -> None:
    model, _ = product(normal(64, 8))
    for kind in ("int2", "uint2", "int4", "uint4", "int8"):
        job = weight_only("rtn", TensorScheme(dtype(kind), kind[0] == "i", PER_CHANNEL))
        quantized = quantize_weight_only(model, {"mm": job}, options=EXACT["QDQ"])
        make_session(quantized, optimized_path=str(tmp_path / "o.onnx"))
        assert [n.op_type for n in onnx.load(tmp_path / "o.onnx").graph.node] == ["MatMulNBits"]


def test_two_bits_in_rows_that_fill_no_bytes_survive_the_fusion() -> None:
    weight = normal(64, 10)
    model, feeds = product(weight)
    job = weight_only("rtn", TensorScheme(dtype("int2"), granularity=PerGroup(32)))
    quantized = quantize_weight_only(model, {"mm": job}, options=EXACT["QDQ"])
    matrix = expected(weight.T, job)
    assert_within(run(quantized, feeds)[0], feeds["x"] @ matrix.T, rounded_inputs(feeds["x"], matrix))


# -- Gemm ------------------------------------------------------------------------------------------------------------

TERMS: dict[str, Any] = {
    "none": None,
    "scalar": np.float32(0.5),
    "one": normal(1),
    "vector": normal(5),
    "row": normal(1, 5),
    "column": normal(3, 1),
    "matrix": normal(3, 5),
    "computed": "x2",
}


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize(
    ("trans_a", "trans_b", "alpha", "beta"), [(0, 0, 1.0, 1.0), (1, 1, 0.5, 2.0), (0, 1, 2.0, 0.0)]
)
def test_gemm_keeps_all_it_does(
    trans_a: int, trans_b: int, alpha: float, beta: float, term: str, quant_format: str
) -> None:
    weight, x = normal(40, 5), normal(3, 40, seed=1)
    feeds = {"x": np.ascontiguousarray(x.T) if trans_a else x, "x2": normal(3, 5, seed=2)}
    given = TERMS[term]
    constants = {"w": np.ascontiguousarray(weight.T) if trans_b else weight}
    inputs = ["x", "w"]
    if given is not None:
        inputs.append("x2" if term == "computed" else "c")
        constants |= {} if term == "computed" else {"c": np.asarray(given)}
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    nodes = [
        helper.make_node("Gemm", inputs, ["y"], name="gemm", **attributes),
        helper.make_node("Relu", ["x2"], ["z"]),
    ]
    model = model_of(nodes, feeds, {"y": 2, "z": 2}, **constants)
    job = weight_only("rtn", TensorScheme(dtype("int8"), granularity=PerGroup(16)))
    quantized = quantize_weight_only(model, {"gemm": job}, options=EXACT[quant_format])
    added = 0 if given is None else beta * (feeds["x2"] if term == "computed" else given)
    wanted = x @ expected(alpha * weight.T, job).T + added
    np.testing.assert_allclose(run(quantized, feeds, "none")[0], wanted, atol=1e-4)
    assert "w" not in quantized.graph.initializers


# -- Gather ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(
    ("algorithm", "kind", "symmetric"), [("rtn", "int4", True), ("hqq", "uint2", False), ("rtn", "uint8", False)]
)
@pytest.mark.parametrize("width", [64, 70, 33])
def test_a_table_is_looked_up_in_blocks(
    algorithm: str, kind: str, symmetric: bool, width: int, quant_format: str
) -> None:
    table, feeds = normal(11, width), {"ids": np.asarray([[0, 10, -1], [5, 5, -11]])}
    model = model_of([helper.make_node("Gather", ["t", "ids"], ["y"], name="look")], feeds, {"y": 3}, t=table)
    job = weight_only(algorithm, TensorScheme(dtype(kind), symmetric, PerGroup(32)))
    quantized = quantize_weight_only(model, {"look": job}, options=EXACT[quant_format])
    matrix = expected(table, job)
    np.testing.assert_array_equal(decoded(node_named(quantized, "look"))[:, :width], matrix)
    for level in ("none", "all"):
        np.testing.assert_allclose(run(quantized, feeds, level)[0], matrix[feeds["ids"]], atol=1e-5)


# -- how weights are held --------------------------------------------------------------------------------------------


TWICE = [
    helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
    helper.make_node("MatMul", ["a", "w"], ["y"], name="b"),
]


def test_nodes_that_share_a_weight_share_the_quantized_one() -> None:
    feeds = {"x": normal(3, 32)}
    model = model_of(TWICE, feeds, {"y": 2}, w=normal(32, 32))
    quantized = quantize_weight_only(model, dict.fromkeys("ab", weight_only("rtn", INT4)), options=EXACT["QOperator"])
    first, second = node_named(quantized, "a"), node_named(quantized, "b")
    assert first.inputs[1] is second.inputs[1]
    assert set(quantized.graph.initializers) == {first.inputs[1].name, first.inputs[2].name}
    matrix = decoded(first)
    np.testing.assert_allclose(run(quantized, feeds)[0], feeds["x"] @ matrix.T @ matrix.T, rtol=1e-3, atol=1e-3)


def test_a_weight_stays_for_the_node_that_is_not_quantized() -> None:
    feeds = {"x": normal(3, 32)}
    model = model_of(TWICE, feeds, {"y": 2}, w=normal(32, 32))
    quantized = quantize_weight_only(model, {"a": weight_only("rtn", INT4)}, options=EXACT["QOperator"])
    wanted = feeds["x"] @ decoded(node_named(quantized, "a")).T @ normal(32, 32)
    np.testing.assert_allclose(run(quantized, feeds)[0], wanted, rtol=1e-3, atol=1e-3)


def test_a_tied_table_serves_as_head_through_a_transpose() -> None:
    feeds, table = {"ids": np.asarray([[1, 4]])}, normal(9, 32)
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["e"], name="look"),
        helper.make_node("Transpose", ["t"], ["tt"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["e", "tt"], ["y"], name="head"),
    ]
    model = model_of(nodes, feeds, {"y": 3}, t=table)
    both = quantize_weight_only(
        model, {n: weight_only("rtn", INT4) for n in ("look", "head")}, options=EXACT["QOperator"]
    )
    matrix = expected(table, weight_only("rtn", INT4))
    np.testing.assert_allclose(run(both, feeds)[0], matrix[feeds["ids"]] @ matrix.T, rtol=1e-4, atol=1e-4)
    assert [n.op_type for n in both.graph] == ["GatherBlockQuantized", "MatMulNBits"]
    assert "t" not in both.graph.initializers
    head = quantize_weight_only(model, {"head": weight_only("rtn", INT4)}, options=EXACT["QOperator"])
    np.testing.assert_allclose(run(head, feeds)[0], table[feeds["ids"]] @ matrix.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_a_weight_stored_in_half_is_read_behind_its_cast(kind: ir.DataType) -> None:
    feeds, weight = {"x": normal(3, 32)}, normal(32, 8).astype(kind.numpy())
    stored = helper.make_tensor("w", kind.value, weight.shape, weight.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["w"], ["wf"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wf"], ["y"], name="mm"),
    ]
    model = model_of(nodes, feeds, {"y": 2}, w=stored)
    quantized = quantize_weight_only(model, {"mm": weight_only("rtn", INT4)}, options=EXACT["QOperator"])
    matrix = expected(weight.astype(np.float32).T, weight_only("rtn", INT4))
    np.testing.assert_array_equal(decoded(node_named(quantized, "mm")), matrix)
    assert [n.op_type for n in quantized.graph] == ["MatMulNBits"]


@pytest.mark.parametrize("quant_format", FORMATS)
def test_a_model_in_half_gets_scales_in_half(quant_format: str) -> None:
    feeds, weight = {"x": normal(3, 64).astype(np.float16)}, normal(64, 8).astype(np.float16)
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["y"], name="mm", beta=0.5)]
    model = model_of(nodes, feeds, {"y": 2}, w=weight, c=normal(8).astype(np.float16))
    job = weight_only("rtn", TensorScheme(dtype("uint4"), False, PerGroup(32)))
    quantized = quantize_weight_only(model, {"mm": job}, options=EXACT[quant_format])
    wanted = feeds["x"] @ expected(weight.astype(np.float32).T, job).T + 0.5 * normal(8).astype(np.float16)
    result = run(quantized, feeds, "none")[0]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, wanted, atol=0.02 * np.abs(wanted).max())


def test_a_branch_is_quantized_without_data() -> None:
    feeds = {"x": normal(3, 32), "flag": np.asarray(True)}
    output = helper.make_tensor_value_info("b", TensorProto.FLOAT, [3, 8])
    then = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["b"], name="inner")], "then", [], [output])
    other = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["b"], name="other")], "else", [], [output])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    model = model_of(nodes, feeds, {"y": 2}, w=normal(32, 8))
    jobs = dict.fromkeys(("inner", "other"), weight_only("rtn", INT4))
    quantized = quantize_weight_only(model, jobs, options=EXACT["QOperator"])
    wanted = feeds["x"] @ expected(normal(32, 8).T, jobs["inner"]).T
    np.testing.assert_allclose(run(quantized, feeds)[0], wanted, atol=1e-4)
    assert len(quantized.graph.initializers) == 2
    with pytest.raises(ConfigError, match=r"node 'inner': it is in the body of an If.*use rtn or hqq"):
        quantize_weight_only(model, {"inner": weight_only("gptq", INT4)}, samples=object())  # type: ignore[arg-type]


def test_the_model_given_stays_as_it_was() -> None:
    model, _ = product(normal(64, 8))
    before = ir.to_proto(model).SerializeToString()
    for quant_format in FORMATS:
        quantize_weight_only(model, {"mm": weight_only("rtn", INT4)}, options=EXACT[quant_format])
    assert ir.to_proto(model).SerializeToString() == before


def test_the_weights_of_a_file_are_not_kept_mapped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = proto_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], {"x": normal(3, 64)}, {"y": 2}, w=normal(64, 64)
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    model = normalise(read_model(tmp_path / "m.onnx"))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    quantized = quantize_weight_only(model, {"mm": weight_only("rtn", INT4)})
    assert tensor.raw is None
    write_model(quantized, tmp_path / "q.onnx")
    again = read_model(tmp_path / "q.onnx")
    np.testing.assert_array_equal(
        decoded(node_named(again, "mm")), expected(normal(64, 64).T, weight_only("rtn", INT4))
    )


# -- what is refused -------------------------------------------------------------------------------------------------


def test_what_can_be_quantized_and_what_cannot() -> None:
    feeds = {"x": normal(3, 4), "ids": np.asarray([0])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="good"),
        helper.make_node("MatMul", ["a", "a"], ["b"], name="computed"),
        helper.make_node("MatMul", ["b", "stack"], ["y"], name="stacked"),
        helper.make_node("Gather", ["w", "ids"], ["z"], name="second", axis=1),
        helper.make_node("Gather", ["whole", "ids"], ["i"], name="integers"),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, feeds, {"y": 3, "z": 2, "f": 1}, w=normal(4, 3), stack=normal(2, 3, 3), whole=np.arange(5))
    assert list(weight_only_nodes(model)) == ["good"]
    reasons = left_in_float(model)
    assert set(reasons) == {"computed", "stacked", "second"}
    assert "not a constant" in reasons["computed"]
    assert "[2, 3, 3]" in reasons["stacked"]
    assert "second axis" in reasons["second"]
    with pytest.raises(QuantizationError, match=r"'computed' cannot be quantized: .* not a constant"):
        quantize_weight_only(model, {"computed": weight_only("rtn", INT4)})
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        quantize_weight_only(model, {"goood": weight_only("rtn", INT4)})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("algorithm", ["rtn", "hqq"])
def test_a_weight_that_is_no_number_is_named(bad: float, algorithm: str) -> None:
    weight = normal(32, 8)
    weight[3, 4] = bad
    model, _ = product(weight)
    job = weight_only(algorithm, TensorScheme(dtype("uint4"), False, PerGroup(32)))
    with pytest.raises(QuantizationError, match=r"node 'mm': .*NaN or Inf"):
        quantize_weight_only(model, {"mm": job})


def test_data_is_asked_for_before_any_work() -> None:
    model, _ = product(normal(32, 8))
    with pytest.raises(CalibrationError, match=r"gptq needs calibration data for the node 'mm'"):
        quantize_weight_only(model, {"mm": weight_only("gptq", INT4)})


def test_groups_that_no_block_divides_are_refused() -> None:
    model, _ = product(normal(48, 8))
    job = weight_only("rtn", TensorScheme(dtype("int4"), granularity=PerGroup(24)))
    with pytest.raises(ConfigError, match=r"node 'mm': a group of 24 inputs"):
        quantize_weight_only(model, {"mm": job})


@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize(("kind", "inputs"), [("uint2", 64), ("uint4", 64), ("uint8", 64), ("uint4", 80)])
def test_zero_points_between_integers_are_added_beside_the_fast_kernel(kind: str, inputs: int, form: str) -> None:
    """MatMulNBits with float zero points writes out the float weight at each call, so it is never given any."""
    weight = normal(inputs, 8)
    job = weight_only("hqq", TensorScheme(dtype(kind), False, PerGroup(32)), {"integer_zero": False})
    for shape in ((5, inputs), (2, 3, inputs)):
        x = normal(*shape, seed=3)
        node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
        model = model_of([node], {"x": x}, {"y": len(shape)}, w=weight)
        quantized = quantize_weight_only(model, {"mm": job}, options=EXACT[form])
        zeros = [
            node.inputs[place].const_value.dtype
            for node in quantized.graph
            for name, place in (("MatMulNBits", 3), ("DequantizeLinear", 2))
            if node.op_type == name
        ]
        assert zeros
        assert all(kind.is_integer() for kind in zeros)
        matrix = expected(weight.T, job)
        # Fused, the runtime rounds the inputs of a QDQ model to int8.
        found = run(quantized, {"x": x}, "none" if form == "QDQ" else "all")[0]
        np.testing.assert_allclose(found, x @ matrix.T, rtol=1e-4, atol=1e-4)


def test_a_table_has_integer_zero_points() -> None:
    look = helper.make_node("Gather", ["t", "ids"], ["y"], name="look")
    model = model_of([look], {"ids": np.asarray([[0, 1]])}, {"y": 3}, t=normal(11, 64))
    job = weight_only("hqq", TensorScheme(dtype("uint4"), False, PerGroup(32)), {"integer_zero": False})
    with pytest.raises(ConfigError, match="Gather reads have integer zero points only"):
        quantize_weight_only(model, {"look": job})


def test_options_and_jobs_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'QDQ'"):
        WeightOnlyOptions(quant_format="QDD")
    with pytest.raises(ConfigError, match="accuracy_level is 0 to 4"):
        WeightOnlyOptions(accuracy_level=5)
    with pytest.raises(ConfigError, match="nf4 has no zero points"):
        check_weight_only(weight_only("rtn", TensorScheme(dtype("nf4"), symmetric=False)))
    with pytest.raises(ConfigError, match="1 to 8 bits, and int16 has 16"):
        check_weight_only(weight_only("rtn", TensorScheme(dtype("int16"))))
    with pytest.raises(ConfigError, match="double quantization"):
        check_weight_only(weight_only("rtn", TensorScheme(dtype("int4"), scales=TensorScheme(dtype("uint8")))))
