"""GPTQ and AWQ on ONNX models: the data streams through, and the result is the algorithm's own."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.algorithms import ALGORITHMS, InputStatistics, LayerResult
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.weight_only import input_statistics as module_under_test
from neural_compressor.onnx.methods.weight_only.method import WeightOnlyOptions
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme

INT3 = TensorScheme(dtype("int3"), granularity=PerGroup(32))
EXACT = WeightOnlyOptions(accuracy_level=1)
LAYER_WISE = {"layer_wise": True}


def weight_only(method: str, weight: TensorScheme, options: Mapping[str, Any] | None = None) -> OpScheme:
    return OpScheme(weight, mode="weight_only", method=Method(method, options or {}))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def correlated(count: int, width: int = 64, seed: int = 0) -> np.ndarray:
    """Inputs that have much in common, and a few that are large."""
    mixed = normal(count, 8, seed=seed) @ normal(8, width, seed=99) + 0.1 * normal(count, width, seed=seed + 1)
    mixed[:, ::16] *= 12
    return mixed


class Reader(CalibrationDataReader):
    """Gives fresh arrays, and remembers how often it was gone over and how many of them live at a time."""

    def __init__(self, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.samples, self.place, self.passes, self.most_alive = list(samples), 0, 1, 0
        self.alive: list[weakref.ref[Any]] = []

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        self.alive = [ref for ref in self.alive if ref() is not None]
        self.most_alive = max(self.most_alive, len(self.alive))
        if self.place == len(self.samples):
            return None
        given = {name: array.copy() for name, array in self.samples[self.place].items()}
        self.place += 1
        self.alive += [weakref.ref(array) for array in given.values()]
        return given

    def rewind(self) -> None:
        # Starting anew before anything was read is no pass.
        self.place, self.passes = 0, self.passes + (self.place > 0)


def samples_of(*arrays: np.ndarray) -> Samples:
    return Samples(Reader([{"x": array} for array in arrays]))


def model_of(nodes: list[Any], width: int = 64, outputs: Sequence[str] = ("y",), **weights: np.ndarray) -> ir.Model:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return normalise(read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))


def matmul(name: str, source: str, target: str) -> Any:
    return helper.make_node("MatMul", [source, f"w_{name}"], [target], name=name)


def statistics_of(*arrays: np.ndarray, floats: Sequence[np.ndarray] = ()) -> InputStatistics:
    seen = InputStatistics()
    for number, array in enumerate(arrays):
        seen.update(array, floats[number] if floats else None)
    return seen


def node_named(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def matrix_in(model: ir.Model, name: str) -> np.ndarray:
    """The matrix (outputs, inputs) that MatMulNBits multiplies with: what it gives for the unit vectors."""
    node = node_named(model, name)
    width = node.attributes.get_int("K")
    x = helper.make_tensor_value_info("u", TensorProto.FLOAT, [width, width])
    y = helper.make_tensor_value_info("v", TensorProto.FLOAT, [width, None])
    constants = [v for v in node.inputs[1:4] if v is not None]
    tensors = [numpy_helper.from_array(v.const_value.numpy(), v.name) for v in constants]
    attributes = {key: value.value for key, value in node.attributes.items()}
    alone = helper.make_node(
        "MatMulNBits", ["u", *(t.name for t in tensors)], ["v"], domain="com.microsoft", **attributes
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(helper.make_graph([alone], "g", [x], [y], tensors), opset_imports=imports, ir_version=8)
    return make_session(read_model(proto)).run(None, {"u": np.eye(width, dtype=np.float32)})[0].T


def run(model: ir.Model, x: np.ndarray, level: str = "all") -> list[np.ndarray]:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model, level=level).run(None, {"x": x})


def values(result: LayerResult) -> np.ndarray:
    return np.asarray(result.array.dequantize())


# -- GPTQ ------------------------------------------------------------------------------------------------------------


def test_gptq_beats_rounding_on_correlated_inputs() -> None:
    weight, seen, unseen = normal(64, 48), [correlated(64, seed=s) for s in range(4)], correlated(256, seed=50)
    model = model_of([matmul("mm", "x", "y")], w_mm=weight)
    errors = {}
    for algorithm in ("rtn", "gptq"):
        quantized = quantize_weight_only(model, {"mm": weight_only(algorithm, INT3)}, samples_of(*seen), EXACT)
        errors[algorithm] = np.square(run(quantized, unseen)[0] - unseen @ weight).mean()
    assert errors["gptq"] < 0.5 * errors["rtn"]


@pytest.mark.parametrize("options", [{}, {"act_order": True}, {"hybrid_order": True}, {"percdamp": 0.05}])
def test_gptq_is_the_algorithm_on_the_streamed_inputs(options: dict[str, Any]) -> None:
    weight, seen = normal(64, 48), [correlated(40, seed=s) for s in range(3)]
    model = model_of([matmul("mm", "x", "y")], w_mm=weight)
    job = weight_only("gptq", INT3, options)
    quantized = quantize_weight_only(model, {"mm": job}, samples_of(*seen), EXACT)
    own = {**options, "static_groups": True} if "act_order" in options else options  # no kernel takes groups elsewhere
    wanted = ALGORITHMS["gptq"](np.ascontiguousarray(weight.T), INT3, statistics_of(*seen), **own)
    np.testing.assert_allclose(matrix_in(quantized, "mm"), values(wanted), rtol=1e-5, atol=1e-6)


def test_gptq_gives_what_the_torch_side_gives() -> None:
    torch = pytest.importorskip("torch")
    side = pytest.importorskip("neural_compressor.torch.quantization")
    weight, seen = normal(64, 48), [correlated(40, seed=s) for s in range(3)]
    layer = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
    layer[0].weight.data = torch.from_numpy(weight.T.copy())
    config = side.GPTQConfig(bits=4, use_sym=True, group_size=32)
    prepared = side.prepare(layer, config)
    for array in seen:
        prepared(torch.from_numpy(array))
    theirs = side.convert(prepared)[0].dequantized_weight().numpy()
    asked = config.wanted
    model = model_of([matmul("mm", "x", "y")], w_mm=weight)
    job = asked
    ours = matrix_in(quantize_weight_only(model, {"mm": job}, samples_of(*seen), EXACT), "mm")
    # A tie may fall to either side, and the rest of what belongs to this output follows; outputs know nothing of each other.
    assert np.isclose(ours, theirs, rtol=1e-4, atol=1e-5).all(1).mean() > 0.9


def test_nodes_that_share_an_input_are_quantized_behind_one_statistic() -> None:
    weights, seen = {"a": normal(64, 16), "b": normal(64, 24, seed=1)}, [correlated(40, seed=s) for s in range(3)]
    nodes = [matmul("a", "x", "p"), matmul("b", "x", "q")]
    model = model_of(nodes, outputs=("p", "q"), w_a=weights["a"], w_b=weights["b"])
    quantized = quantize_weight_only(model, dict.fromkeys("ab", weight_only("gptq", INT3)), samples_of(*seen), EXACT)
    for name, weight in weights.items():
        wanted = ALGORITHMS["gptq"](np.ascontiguousarray(weight.T), INT3, statistics_of(*seen))
        np.testing.assert_allclose(matrix_in(quantized, name), values(wanted), rtol=1e-5, atol=1e-6)


CHAIN = [matmul("a", "x", "p"), helper.make_node("Relu", ["p"], ["r"]), matmul("b", "r", "y")]


def chain() -> tuple[ir.Model, dict[str, np.ndarray]]:
    weights = {"w_a": normal(64, 32), "w_b": normal(32, 16, seed=1)}
    return model_of(CHAIN, **weights), weights


def test_layer_wise_looks_at_what_arrives_behind_quantized_nodes() -> None:
    model, weights = chain()
    seen = [correlated(40, seed=s) for s in range(3)]
    first = np.asarray(values(ALGORITHMS["gptq"](np.ascontiguousarray(weights["w_a"].T), INT3, statistics_of(*seen))))
    floats = [np.maximum(x @ weights["w_a"], 0) for x in seen]
    behind = [np.maximum(x @ first.T, 0) for x in seen]
    for options, arrived in (({}, statistics_of(*floats)), (LAYER_WISE, statistics_of(*behind, floats=floats))):
        jobs = dict.fromkeys("ab", weight_only("gptq", INT3, options))
        quantized = quantize_weight_only(model, jobs, samples_of(*seen), EXACT)
        np.testing.assert_allclose(matrix_in(quantized, "a"), first, rtol=1e-5, atol=1e-6)
        wanted = values(ALGORITHMS["gptq"](np.ascontiguousarray(weights["w_b"].T), INT3, arrived))
        assert np.isclose(matrix_in(quantized, "b"), wanted, rtol=1e-4, atol=1e-5).mean() > 0.99


def test_a_shared_weight_sees_all_its_inputs() -> None:
    weight, seen = normal(64, 64), [correlated(40, seed=s) for s in range(3)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="a"),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"], name="b"),
    ]
    model = model_of(nodes, w=weight)
    quantized = quantize_weight_only(model, dict.fromkeys("ab", weight_only("gptq", INT3)), samples_of(*seen), EXACT)
    assert node_named(quantized, "a").inputs[1] is node_named(quantized, "b").inputs[1]
    both = statistics_of(*(part for x in seen for part in (np.maximum(x @ weight, 0), x)))
    wanted = values(ALGORITHMS["gptq"](np.ascontiguousarray(weight.T), INT3, both))
    assert np.isclose(matrix_in(quantized, "a"), wanted, rtol=1e-4, atol=1e-5).mean() > 0.99


def test_a_transposed_input_is_seen_the_right_way() -> None:
    weight, seen = normal(64, 16), [correlated(40, seed=s) for s in range(3)]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], name="gemm", transA=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = normalise(read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    given = samples_of(*(np.ascontiguousarray(x.T) for x in seen))
    for algorithm in ("gptq", "awq"):
        quantized = quantize_weight_only(model, {"gemm": weight_only(algorithm, INT3)}, given, EXACT)
        wanted = ALGORITHMS[algorithm](np.ascontiguousarray(weight.T), INT3, statistics_of(*seen))
        result = make_session(quantized).run(None, {"x": np.ascontiguousarray(seen[0].T)})[0]
        reach = np.abs(seen[0] @ np.asarray(wanted.dequantize()).T).max()
        np.testing.assert_allclose(result, seen[0] @ np.asarray(wanted.dequantize()).T, atol=1e-4 * reach)


# -- blocks ----------------------------------------------------------------------------------------------------------


def blocks(named: bool = True, count: int = 2) -> tuple[ir.Model, list[str], list[np.ndarray]]:
    """Blocks of two products each, their nodes, and their weights (outputs, inputs); a weight can tell the block too."""
    layers = [f"/layers.{number}/{name}/MatMul" for number in range(count) for name in ("up", "down")]
    nodes, weights, arrays, value = [], {}, [], "x"
    for number, layer in enumerate(layers):
        array = normal(32 if number % 2 else 64, 64 if number % 2 else 32, seed=number) / 8
        weight = f"w{number}" if named else layer.strip("/").replace("/", ".").replace("MatMul", "weight")
        weights[weight] = array
        arrays.append(np.ascontiguousarray(array.T))
        name = layer if named else f"product_{number}"
        last = "y" if layer is layers[-1] else f"{number}_out"
        nodes.append(helper.make_node("MatMul", [value, weight], [f"{number}_product"], name=name))
        nodes.append(helper.make_node("Relu", [f"{number}_product"], [last]))
        value = last
    return model_of(nodes, **weights), [node.name for node in nodes if node.name], arrays


def passed(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    for weight in weights:
        x = np.maximum(x @ weight.T, 0)
    return x


@pytest.mark.parametrize("named", [True, False], ids=["names of nodes", "names of weights"])
@pytest.mark.parametrize(
    ("algorithm", "own"), [("gptq", {}), ("gptq", {"upstream": False}), ("awq", {"auto_scale": False})]
)
def test_each_block_is_calibrated_behind_those_before_it(algorithm: str, own: dict[str, Any], named: bool) -> None:
    model, names, (up, down, second_up, second_down) = blocks(named)
    seen = [correlated(40, seed=s) for s in range(3)]
    jobs = dict.fromkeys(names, weight_only(algorithm, INT3, own))
    quantized = quantize_weight_only(model, jobs, samples_of(*seen), EXACT)
    first = [matrix_in(quantized, name) for name in names[:2]]
    for name, weight, before in ((names[2], second_up, []), (names[3], second_down, [second_up])):
        behind = [passed(x, *first, *before) for x in seen]
        floats = [passed(x, up, down, *before) for x in seen] if algorithm == "gptq" else []
        wanted = values(ALGORITHMS[algorithm](weight, INT3, statistics_of(*behind, floats=floats), **own))
        assert np.isclose(matrix_in(quantized, name), wanted, rtol=1e-4, atol=1e-5).mean() > 0.98
    wanted = values(ALGORITHMS[algorithm](down, INT3, statistics_of(*(passed(x, up) for x in seen)), **own))
    assert np.isclose(first[1], wanted, rtol=1e-4, atol=1e-5).mean() > 0.98


def test_what_the_statistics_may_take_changes_the_passes_and_not_the_result() -> None:
    model, names, _ = blocks()
    found = []
    for most, passes in ((1 << 30, 2), (4 * 64 * 64, 3)):
        reader = Reader([{"x": correlated(40, seed=s)} for s in range(3)])
        options = WeightOnlyOptions(accuracy_level=1, hessian_bytes=most)
        jobs = dict.fromkeys(names, weight_only("gptq", INT3))
        quantized = quantize_weight_only(model, jobs, Samples(reader), options)
        found.append([matrix_in(quantized, name) for name in names])
        assert reader.passes == passes
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("algorithm", "models"), [("gptq", 2), ("awq", 1)])
def test_a_block_runs_no_more_often_the_more_blocks_there_are(
    algorithm: str, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, names, _ = blocks(count=8)
    run: list[int] = []

    def counted(part: ir.Model, **options: Any) -> Any:
        run.append(len(list(part.graph)))
        return make_session(part, **options)

    monkeypatch.setattr(module_under_test, "make_session", counted)
    reader = Reader([{"x": correlated(40, seed=s)} for s in range(3)])
    quantize_weight_only(model, dict.fromkeys(names, weight_only(algorithm, INT3)), Samples(reader), EXACT)
    assert len(run) >= 8
    assert sum(run) <= models * 2.5 * len(list(model.graph))
    assert reader.passes == 2


def test_without_room_for_what_samples_come_to_passes_begin_at_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, names, _ = blocks(count=3)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    found = []
    for passes in (2, 3):
        reader = Reader([{"x": correlated(40, seed=s)} for s in range(3)])
        jobs = dict.fromkeys(names, weight_only("gptq", INT3))
        quantized = quantize_weight_only(model, jobs, Samples(reader), EXACT)
        found.append([matrix_in(quantized, name) for name in names])
        assert reader.passes == passes
        monkeypatch.setattr(np, "savez", full)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_data_that_cannot_be_gone_over_again_shows_the_float_model(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Reader):
        def rewind(self) -> None:
            raise NotImplementedError

    model, names, (up, down, second_up, _) = blocks()
    seen = [correlated(40, seed=s) for s in range(3)]
    samples = Samples(Once([{"x": x} for x in seen]))
    quantized = quantize_weight_only(model, dict.fromkeys(names, weight_only("gptq", INT3)), samples, EXACT)
    assert "Once cannot be gone over again" in caplog.text
    wanted = values(ALGORITHMS["gptq"](second_up, INT3, statistics_of(*(passed(x, up, down) for x in seen))))
    assert np.isclose(matrix_in(quantized, names[2]), wanted, rtol=1e-4, atol=1e-5).mean() > 0.98


# -- memory ----------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_a_sample() -> None:
    model, _ = chain()
    reader = Reader([{"x": correlated(8, seed=s)} for s in range(20)])
    quantize_weight_only(model, dict.fromkeys("ab", weight_only("gptq", INT3)), Samples(reader), EXACT)
    assert reader.most_alive <= 2


@pytest.mark.parametrize(("most", "passes"), [(1 << 30, 1), (4 * 64 * 64, 2), (4 * (64 * 64 + 32 * 32), 1)])
def test_statistics_are_held_in_portions(most: int, passes: int) -> None:
    model, _ = chain()
    reader = Reader([{"x": correlated(8, seed=s)} for s in range(3)])
    options = WeightOnlyOptions(hessian_bytes=most)
    quantize_weight_only(model, dict.fromkeys("ab", weight_only("gptq", INT3)), Samples(reader), options)
    assert reader.passes == passes


def test_layer_wise_goes_over_the_data_for_each_input() -> None:
    model, _ = chain()
    reader = Reader([{"x": correlated(8, seed=s)} for s in range(3)])
    quantize_weight_only(model, dict.fromkeys("ab", weight_only("gptq", INT3, LAYER_WISE)), Samples(reader), EXACT)
    assert reader.passes == 2


# -- AWQ -------------------------------------------------------------------------------------------------------------

BEFORE: dict[str, tuple[list[Any], list[str]]] = {
    "norm": ([helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm")], []),
    "vector": ([helper.make_node("Mul", ["x", "g"], ["n"], name="times")], []),
    "sum": ([helper.make_node("Mul", ["x", "g"], ["m"]), helper.make_node("Add", ["m", "b"], ["n"])], []),
    "quantized product": ([matmul("before", "x", "n")], ["before"]),
    "float product": ([matmul("before", "x", "n")], []),
    "nothing": ([helper.make_node("Softmax", ["x"], ["n"])], []),
}


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
@pytest.mark.parametrize("before", BEFORE)
def test_an_input_scale_goes_into_what_comes_before(before: str, quant_format: str) -> None:
    nodes, quantized_too = BEFORE[before]
    weights = {"g": 1 + 0.1 * normal(64), "b": normal(64, seed=2), "w_before": normal(64, 64, seed=3)}
    own = {name: array for name, array in weights.items() if any(name in node.input for node in nodes)}
    own |= {"w_a": normal(64, 16, seed=4), "w_c": normal(64, 24, seed=5)}
    model = model_of([*nodes, matmul("a", "n", "p"), matmul("c", "n", "q")], outputs=("p", "q"), **own)
    seen = [correlated(40, seed=s) for s in range(3)]
    options = WeightOnlyOptions(quant_format=quant_format, accuracy_level=1)
    jobs = dict.fromkeys("ac", weight_only("awq", INT3)) | dict.fromkeys(quantized_too, weight_only("rtn", INT3))
    quantized = quantize_weight_only(model, jobs, samples_of(*seen), options)

    inner = [make_session(model, outputs=["n"]).run(None, {"x": x})[0] for x in seen]
    stacked = np.concatenate([own["w_a"].T, own["w_c"].T])
    wanted = ALGORITHMS["awq"](stacked, INT3, statistics_of(*inner))
    assert wanted.input_scale is not None
    if quantized_too:
        rough = np.asarray(ALGORITHMS["rtn"](np.ascontiguousarray(own["w_before"].T), INT3).dequantize())
        inner = [x @ rough.T for x in seen]
    products = inner[0] @ np.asarray(wanted.dequantize()).T
    for level in ("none", "all") if quant_format == "QOperator" else ("none",):
        result = np.concatenate(run(quantized, seen[0], level), axis=1)
        np.testing.assert_allclose(result, products, atol=1e-4 * np.abs(products).max())
    added = [n for n in quantized.graph if n.op_type == "Mul"]
    assert len(added) == sum(n.op_type == "Mul" for n in model.graph) + (before == "nothing")


def test_an_input_that_others_read_is_scaled_by_a_node_of_its_own() -> None:
    own = {"g": 1 + 0.1 * normal(64), "w_a": normal(64, 16, seed=4)}
    nodes = [helper.make_node("Mul", ["x", "g"], ["n"]), matmul("a", "n", "p"), helper.make_node("Relu", ["n"], ["q"])]
    model = model_of(nodes, outputs=("p", "q"), **own)
    seen = [correlated(40, seed=s) for s in range(3)]
    quantized = quantize_weight_only(model, {"a": weight_only("awq", INT3)}, samples_of(*seen), EXACT)
    inner = [x * own["g"] for x in seen]
    wanted = ALGORITHMS["awq"](np.ascontiguousarray(own["w_a"].T), INT3, statistics_of(*inner))
    product, others = run(quantized, seen[0])
    np.testing.assert_allclose(others, np.maximum(inner[0], 0), rtol=1e-6)
    result = inner[0] @ np.asarray(wanted.dequantize()).T
    np.testing.assert_allclose(product, result, atol=1e-4 * np.abs(result).max())


def test_awq_beats_rounding_where_some_inputs_are_large() -> None:
    weight, seen, unseen = normal(64, 48), [correlated(64, seed=s) for s in range(4)], correlated(256, seed=50)
    model = model_of([matmul("mm", "x", "y")], w_mm=weight)
    errors = {}
    for algorithm in ("rtn", "awq"):
        quantized = quantize_weight_only(model, {"mm": weight_only(algorithm, INT3)}, samples_of(*seen), EXACT)
        errors[algorithm] = np.square(run(quantized, unseen)[0] - unseen @ weight).mean()
    assert errors["awq"] < 0.7 * errors["rtn"]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_table_has_no_inputs_to_look_at() -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "ids"], ["y"], name="look")],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])],
        [numpy_helper.from_array(normal(5, 32), "t")],
    )
    model = normalise(read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    with pytest.raises(ConfigError, match=r"node 'look': it looks entries up.*use rtn or hqq"):
        quantize_weight_only(model, {"look": weight_only("awq", INT3)}, samples_of())


def test_data_that_does_not_fit_is_named() -> None:
    model, _ = chain()
    jobs = dict.fromkeys("ab", weight_only("gptq", INT3))
    with pytest.raises(CalibrationError, match="gave no samples"):
        quantize_weight_only(model, jobs, samples_of())
    with pytest.raises(CalibrationError, match="sample 0"):
        quantize_weight_only(model, jobs, samples_of(normal(3, 5)))
    bad = normal(3, 64)
    bad[1, 2] = np.nan
    with pytest.raises(CalibrationError, match="input 'x' holds NaN in sample 1"):
        quantize_weight_only(model, jobs, samples_of(normal(3, 64), bad))
