"""Models, data, names and paths that are broken or odd: an error of ours that names the fault, or the right result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import (
    CalibrationError,
    ConfigError,
    EvaluationError,
    FormatError,
    QuantizationError,
    WorkspaceError,
)
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    GPTQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    convert_precision,
    quantize,
)
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader
from neural_compressor.strategy.build import build_space

WIDTH = 48
RANDOM = np.random.default_rng(0)
WEIGHTS = {name: (RANDOM.standard_normal((WIDTH, WIDTH)) * 0.2).astype(np.float32) for name in ("w", "v")}
SAMPLES = [{"x": RANDOM.standard_normal((3, WIDTH)).astype(np.float32)} for _ in range(2)]


class Reader(CalibrationDataReader):
    """Gives what it was given; an exception is raised."""

    def __init__(self, samples: Any = SAMPLES) -> None:
        self.samples = list(samples)
        self.rewind()

    def get_next(self) -> Any:
        sample = next(self.rest, None)
        if isinstance(sample, Exception):
            raise sample
        return sample

    def rewind(self) -> None:
        self.rest = iter(self.samples)


CONFIGS: dict[str, Callable[[], Any]] = {
    "rtn": lambda: RTNConfig(weight_bits=8),
    "dynamic": DynamicQuantConfig,
    "static": lambda: StaticQuantConfig(Reader()),
}


def model() -> onnx.ModelProto:
    """``y = relu(x w) v``, of nodes ``first``, ``relu`` and ``second``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(source: onnx.ModelProto | str | Path, feed: Mapping[str, np.ndarray] = SAMPLES[0]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]


def expected(x: np.ndarray = SAMPLES[0]["x"]) -> Any:
    return np.maximum(x @ WEIGHTS["w"], 0) @ WEIGHTS["v"]


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Integers of 8 bits are within a few hundredths of the range."""
    return found.shape == wanted.shape and bool(np.max(np.abs(found - wanted)) < 0.05 * np.max(np.abs(wanted)))


# --- messages that are no valid models -------------------------------------------------------------------------------

Change = Callable[[onnx.ModelProto], Any]


def _external(**entries: str) -> Change:
    """The first weight in a file ``weights.bin`` that is there, but for what ``entries`` say."""

    def change(m: onnx.ModelProto) -> None:
        tensor = m.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        size = str(WIDTH * WIDTH * 4)
        for key, value in ({"location": "weights.bin", "offset": "0", "length": size} | entries).items():
            tensor.external_data.add(key=key, value=value)

    return change


def _node(*args: Any, **kwargs: Any) -> Change:
    return lambda m: m.graph.node.append(helper.make_node(*args, **kwargs))


def _cycle(m: onnx.ModelProto) -> None:
    m.graph.node[0].input[0] = "b"


def _sparse(m: onnx.ModelProto) -> None:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("places", TensorProto.INT64, [1], [3])
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [WIDTH]))


def _sparse_constant(m: onnx.ModelProto) -> None:
    _sparse(m)
    sparse = onnx.SparseTensorProto()
    sparse.CopyFrom(m.graph.sparse_initializer.pop())
    m.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=sparse))


def _raw(change: Callable[[bytes], bytes]) -> Change:
    def apply(m: onnx.ModelProto) -> None:
        m.graph.initializer[0].raw_data = change(m.graph.initializer[0].raw_data)

    return apply


def _typed(count: int) -> Change:
    def change(m: onnx.ModelProto) -> None:
        m.graph.initializer[0].ClearField("raw_data")
        m.graph.initializer[0].float_data.extend([0.5] * count)

    return change


def _dims(*dims: int) -> Change:
    def change(m: onnx.ModelProto) -> None:
        m.graph.initializer[0].dims[:] = dims

    return change


def _opset(version: int) -> Change:
    def change(m: onnx.ModelProto) -> None:
        m.opset_import[0].version = version

    return change


def _recursive(m: onnx.ModelProto) -> None:
    m.opset_import.append(helper.make_opsetid("own", 1))
    imports = list(m.opset_import)
    for name, other in (("f", "g"), ("g", "f")):
        node = helper.make_node(other, ["i"], ["o"], domain="own")
        m.functions.append(helper.make_function("own", name, ["i"], ["o"], [node], imports))


def _broken_function(m: onnx.ModelProto) -> None:
    m.opset_import.append(helper.make_opsetid("own", 1))
    node = helper.make_node("Relu", ["nothing"], ["o"])
    m.functions.append(helper.make_function("own", "f", ["i"], ["o"], [node], list(m.opset_import)))


def _branch(m: onnx.ModelProto) -> None:
    """An If whose branch reads what nothing gives."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["nothing"], ["r"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    m.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    m.graph.node.append(helper.make_node("If", ["yes"], ["z"], then_branch=inner, else_branch=inner, name="if"))


def _map(m: onnx.ModelProto) -> None:
    """What classifiers of scikit-learn give when they are exported as they are."""
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    m.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    m.graph.node.append(helper.make_node("ZipMap", ["y"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0]))
    m.graph.output.append(helper.make_value_info("z", helper.make_sequence_type_proto(kind)))


INVALID: dict[str, tuple[Change, str]] = {
    "external offset -4": (_external(offset="-4"), r"'w' has the external offset '-4'"),
    "external offset abc": (_external(offset="abc"), r"'w' has the external offset 'abc'"),
    "external offset 1.5": (_external(offset="1.5"), r"external offset '1\.5'"),
    "external offset empty": (_external(offset=""), "external offset ''"),
    "external length -1": (_external(length="-1"), "external length '-1'"),
    "external length abc": (_external(length="abc"), "external length 'abc'"),
    "external length too small": (_external(length="8"), "8 bytes where its shape needs"),
    "external length too large": (_external(length="99999999"), "99999999 bytes where its shape needs"),
    "external offset behind the end": (_external(offset="99999999"), r"'w' lies in 'weights\.bin', which is truncated"),
    "external offset near the end": (_external(offset="4"), "which is truncated"),
    "external file missing": (_external(location="other.bin"), r"'other\.bin', which does not exist"),
    "external folder": (_external(location="."), "which does not exist"),
    "external location empty": (_external(location=""), "must have a location"),
    "external location absolute": (_external(location="/etc/hostname"), "outside of the model's folder"),
    "external location above": (_external(location="../weights.bin"), "outside of the model's folder"),
    "external location above in steps": (_external(location="a/../../weights.bin"), "outside of the model's folder"),
    "external location linked": (_external(location="link.bin"), "a link to outside of the model's folder"),
    "two nodes give one value": (
        _node("Relu", ["x"], ["a"], name="again"),
        r"Relu 'again' gives the value 'a'.*'first'",
    ),
    "a node gives an input": (_node("Relu", ["a"], ["x"]), "gives the value 'x', and so does an input"),
    "a node gives a weight": (_node("Relu", ["a"], ["w"]), "gives the value 'w', and so does an input or initializer"),
    "a node gives a value twice": (_node("Split", ["x"], ["p", "p"]), "gives the value 'p'"),
    "two outputs of one name": (lambda m: m.graph.output.append(m.graph.output[0]), "two outputs are called 'y'"),
    "two inputs of one name": (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs are called 'x'"),
    "two weights of one name": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "two initializers"),
    "an output that nothing gives": (lambda m: m.graph.node.pop(), "output 'y' is given by no node"),
    "no outputs": (lambda m: m.graph.ClearField("output"), "no outputs"),
    "no graph": (lambda m: m.ClearField("graph"), "no outputs"),
    "cycle": (_cycle, "a cycle: the MatMul 'first', the Relu 'relu'"),
    "a node that reads itself": (_node("Relu", ["loop"], ["loop"], name="self"), "a cycle: the Relu 'self'"),
    "an input that nothing gives": (_node("Relu", ["nothing"], ["z"], name="lost"), "'lost' reads the value 'nothing'"),
    "in a branch": (_branch, "'inner' reads the value 'nothing'"),
    "a node without a type": (_node("", ["x"], ["z"], name="what"), "'what' has no type"),
    "sparse initializer": (_sparse, "'sparse' is sparse, which is not supported; make it dense"),
    "sparse constant": (_sparse_constant, "'sparse_value' is sparse"),
    "raw data too short": (_raw(lambda data: data[:-4]), "'w' has 9212 bytes, and its shape .* needs 9216"),
    "raw data too long": (_raw(lambda data: data + b"\x00"), "'w' has 9217 bytes"),
    "raw data empty": (_raw(lambda data: b""), "'w' has 0 bytes"),
    "no data": (lambda m: m.graph.initializer[0].ClearField("raw_data"), "'w' has 0 numbers"),
    "numbers too few": (_typed(7), "'w' has 7 numbers"),
    "numbers too many": (_typed(WIDTH * WIDTH + 1), "'w' has 2305 numbers"),
    "negative dims": (_dims(-1, WIDTH), r"the shape \[-1, 48\]; sizes are 0 or more"),
    "huge dims": (_dims(2**40, 2**40), "needs 4835703278458516698824704"),
    "dims whose product overflows to 0": (_dims(2**32, 2**32), "needs 73786976294838206464"),
    "unknown data type": (lambda m: setattr(m.graph.initializer[0], "data_type", 99), "data type 99"),
    "no data type": (lambda m: setattr(m.graph.initializer[0], "data_type", 0), "data type 0"),
    "an output that is a map": (_map, "cannot be read: Map types are not supported"),
    "no opset": (lambda m: m.ClearField("opset_import"), "imports no opset .*'first'"),
    "another opset only": (lambda m: setattr(m.opset_import[0], "domain", "own"), "imports no opset"),
    "opset 0": (_opset(0), "opset 0 .*the first is 1"),
    "opset -1": (_opset(-1), "opset -1"),
    "opset of the future": (_opset(999), "opset 999 .*install a newer onnx"),
    "functions that call each other": (_recursive, "the function 'f' calls itself"),
    "a function that reads nothing known": (_broken_function, "function 'f': the Relu 'o' reads the value 'nothing'"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the data of a weight in it, and a link to outside."""
    found = tmp_path / "models"
    found.mkdir()
    (found / "weights.bin").write_bytes(WEIGHTS["w"].tobytes())
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["w"].tobytes())
    (found / "link.bin").symlink_to(tmp_path / "weights.bin")
    return found


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "proto"])
@pytest.mark.parametrize("fault", INVALID)
def test_an_invalid_model(fault: str, from_file: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, message = INVALID[fault]
    broken, source = model(), folder / "m.onnx"
    change(broken)
    source.write_bytes(broken.SerializeToString())
    monkeypatch.chdir(folder)  # where the data of a model that is given lies
    before = sorted(folder.iterdir())
    with pytest.raises(FormatError, match=message):
        quantize(source if from_file else broken, folder / "out.onnx", RTNConfig())
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("config", CONFIGS)
def test_external_data_as_it_should_be(config: str, folder: Path) -> None:
    """What the faults above are faults of."""
    good = model()
    _external()(good)
    (folder / "m.onnx").write_bytes(good.SerializeToString())
    quantize(folder / "m.onnx", folder / "out.onnx", CONFIGS[config]())
    assert close(run(folder / "out.onnx"), expected())


# --- models that are odd, and valid ----------------------------------------------------------------------------------


def _unsorted(m: onnx.ModelProto) -> None:
    nodes = list(m.graph.node)[::-1]
    m.graph.ClearField("node")
    m.graph.node.extend(nodes)


def _renamed(value: str, node: str) -> Change:
    def change(m: onnx.ModelProto) -> None:
        m.graph.node[0].output[0] = m.graph.node[1].input[0] = value
        m.graph.node[0].input[1] = m.graph.initializer[0].name = f"{value} weight"
        m.graph.node[0].name = node

    return change


def _zero_size(m: onnx.ModelProto) -> None:
    m.graph.initializer.append(numpy_helper.from_array(np.zeros((0, WIDTH), np.float32), "none"))
    m.graph.node[0].input[0] = "joined"
    m.graph.node.insert(0, helper.make_node("Concat", ["x", "none"], ["joined"], axis=0, name="join"))


def _function(m: onnx.ModelProto) -> None:
    """Every node inside of a function, which is all that the graph has."""
    imports = [helper.make_opsetid("", 17)]
    body = helper.make_function("own", "Net", ["x", "w", "v"], ["y"], list(m.graph.node), imports)
    m.functions.append(body)
    m.opset_import.append(helper.make_opsetid("own", 1))
    m.graph.ClearField("node")
    m.graph.node.append(helper.make_node("Net", ["x", "w", "v"], ["y"], name="net", domain="own"))


def _listed(m: onnx.ModelProto) -> None:
    m.ir_version = 3
    for name in WEIGHTS:
        m.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]))


def _explicit_domain(m: onnx.ModelProto) -> None:
    m.opset_import[0].domain = "ai.onnx"


def _unused(m: onnx.ModelProto) -> None:
    m.graph.initializer.append(numpy_helper.from_array(np.full((70, 70), np.nan, np.float32), "unused"))
    m.graph.node.append(helper.make_node("Relu", ["x"], ["dead"]))


def _same_names(m: onnx.ModelProto) -> None:
    for node in m.graph.node:
        node.name = "node"


def _no_names(m: onnx.ModelProto) -> None:
    for node in m.graph.node:
        node.name = ""


def _unlike_shapes(m: onnx.ModelProto) -> None:
    m.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2**40, 7]))


ODD: dict[str, Change] = {
    "unsorted nodes": _unsorted,
    "a newline in names": _renamed("a\nb", "first\nnode"),
    "quotes in names": _renamed("a'b\"c", 'it\'s a "node"'),
    "braces and slashes in names": _renamed("{a}/../b\\c", "%s {0} ../../x"),
    "names of other scripts": _renamed("ﻩ值", "узел"),
    "a regular expression as name": _renamed(".*", "a[0].+*?"),
    "zero-size initializer": _zero_size,
    "nodes in functions only": _function,
    "weights listed as inputs, IR 3": _listed,
    "the standard domain by name": _explicit_domain,
    "what nothing reads": _unused,
    "nodes of one name": _same_names,
    "nodes without names": _no_names,
    "wrong and huge shapes of values": _unlike_shapes,
    "opset 9": _opset(9),
    "opset 13": _opset(13),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("oddity", ODD)
def test_an_odd_model(oddity: str, config: str, tmp_path: Path) -> None:
    odd, out = model(), tmp_path / "out.onnx"
    ODD[oddity](odd)
    (tmp_path / "m.onnx").write_bytes(odd.SerializeToString())
    before = odd.SerializeToString()
    quantize(tmp_path / "m.onnx", out, CONFIGS[config]())
    given = quantize(odd, None, CONFIGS[config]())
    assert odd.SerializeToString() == before
    onnx.checker.check_model(str(out))
    assert given is not None
    assert close(run(out), expected())
    assert close(run(given), expected())
    integers = {TensorProto.INT8, TensorProto.UINT8}
    assert integers & {tensor.data_type for tensor in onnx.load(out).graph.initializer}


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("config", CONFIGS)
def test_weights_that_are_no_numbers(config: str, number: float, tmp_path: Path) -> None:
    bad, array = model(), WEIGHTS["w"].copy()
    array[3, 4] = number
    bad.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    with pytest.raises((QuantizationError, CalibrationError), match=r"first.*(?i:nan|inf|finite)"):
        quantize(bad, tmp_path / "out.onnx", CONFIGS[config]())
    assert not list(tmp_path.iterdir())


def _custom(m: onnx.ModelProto) -> onnx.ModelProto:
    m.opset_import.append(helper.make_opsetid("own", 1))
    m.graph.node[1].op_type, m.graph.node[1].domain = "Own", "own"
    return m


def test_operators_that_nobody_here_knows() -> None:
    """Weights alone are quantized around them; what has to run them says that the runtime does not."""
    for config in (RTNConfig(weight_bits=8), DynamicQuantConfig()):
        new = quantize(_custom(model()), None, config)
        assert new is not None
        assert [node.op_type for node in new.graph.node if node.domain == "own"] == ["Own"]
    with pytest.raises(FormatError, match=r"(?s)ONNX Runtime does not take the model.*Own"):
        quantize(_custom(model()), None, StaticQuantConfig(Reader()))


# --- files and paths -------------------------------------------------------------------------------------------------

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "text": b"import onnx\nprint('no model')\n",
    "JSON": b'{"graph": {"node": []}}',
    "zeros": bytes(64),
    "a zip": b"PK\x03\x04" + bytes(60),
    "an endless number": b"\xff" * 40,
    "a field longer than the file": b"\x3a\xff\xff\xff\xff\x0f",
    "half a model": model().SerializeToString()[:9000],
    "a model and more": model().SerializeToString() + b"\xff\xff",
}


@pytest.mark.parametrize("suffix", [".onnx", ".pb", ""])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_holds_no_model(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(CONTENTS[content])
    with pytest.raises(FormatError, match="not an ONNX model"):
        quantize(path, tmp_path / "out.onnx", RTNConfig())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "does not exist"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("nothing"), "does not exist"),
    ],
    ids=["folder", "missing", "pipe", "dangling link"],
)
def test_a_path_that_is_no_file(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    make(tmp_path / "m.onnx")
    for call in (
        lambda: quantize(tmp_path / "m.onnx", tmp_path / "out.onnx", RTNConfig()),
        lambda: convert_precision(tmp_path / "m.onnx", tmp_path / "out.onnx", "fp16"),
    ):
        with pytest.raises(FormatError, match=message):
            call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to(os.devnull), "no regular file"),
        (lambda path: path.symlink_to(path.name), "leads nowhere"),
    ],
    ids=["folder", "pipe", "link to a device", "link to itself"],
)
def test_an_output_that_is_no_file(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    """Said before any work: the reader is not asked for anything."""
    out = tmp_path / "out.onnx"
    make(out)
    config = StaticQuantConfig(Reader([AssertionError("work was begun")]))
    with pytest.raises(WorkspaceError, match=message):
        quantize(model(), out, config)
    with pytest.raises(WorkspaceError, match=message):
        convert_precision(model(), out, "fp16")
    assert not out.is_file()


@pytest.mark.parametrize("config", CONFIGS)
def test_an_output_in_a_folder_that_is_not_there_yet(config: str, tmp_path: Path) -> None:
    quantize(model(), tmp_path / "a" / "b" / "out.onnx", CONFIGS[config]())
    assert close(run(tmp_path / "a" / "b" / "out.onnx"), expected())


@pytest.mark.parametrize("config", CONFIGS)
def test_the_input_as_output(config: str, folder: Path) -> None:
    path = folder / "m.onnx"
    for change in (lambda m: None, _external()):
        source = model()
        change(source)
        path.write_bytes(source.SerializeToString())
        quantize(path, path, CONFIGS[config]())
        assert close(run(path), expected())


def test_an_output_through_a_link_to_the_input(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    quantize(tmp_path / "m.onnx", tmp_path / "link.onnx", RTNConfig(weight_bits=8))
    assert (tmp_path / "link.onnx").is_symlink()
    assert close(run(tmp_path / "m.onnx"), expected())


# --- calibration data ------------------------------------------------------------------------------------------------

GOOD = SAMPLES[0]["x"]
READERS: dict[str, tuple[Any, str]] = {
    "an array": ([GOOD], "sample 0 is of type ndarray, expected inputs by name"),
    "an array of one number": ([np.float32(1)], "sample 0 is of type float32"),
    "a list of arrays": ([[GOOD]], "sample 0 is of type list"),
    "a pair": ([(GOOD, 1)], "sample 0 is of type tuple"),
    "a text": (["x"], "sample 0 is of type str"),
    "an array later on": ([*SAMPLES, GOOD], "sample 2 is of type ndarray"),
    "empty": ([], "gave no samples"),
    "no inputs": ([{}], r"lacks the inputs \['x'\]"),
    "another input": ([{"X": GOOD}], "an input 'X'; known: x"),
    "an input too many": ([{"x": GOOD, "z": GOOD}], "an input 'z'"),
    "doubles": ([{"x": GOOD.astype(np.float64)}], "'x' of sample 0 is float64, and the model takes float32"),
    "halves": ([{"x": GOOD.astype(np.float16)}], "is float16"),
    "integers": ([{"x": GOOD.astype(np.int64)}], "is int64"),
    "objects": ([{"x": GOOD.astype(object)}], "is object"),
    "texts": ([{"x": np.full(GOOD.shape, "a")}], "is <U1"),
    "None": ([{"x": None}], "is object"),
    "rank 1": ([{"x": GOOD[0]}], r"has shape \(48,\), and the model takes \(any, 48\)"),
    "rank 3": ([{"x": GOOD[None]}], r"has shape \(1, 3, 48\)"),
    "another width": ([{"x": GOOD[:, 1:]}], r"has shape \(3, 47\)"),
    "ragged": ([{"x": [[1.0], [1.0, 2.0]]}], "input 'x' of sample 0 is no array"),
    "NaN": ([{"x": np.full_like(GOOD, np.nan)}], "(?i)nan|finite"),
    "infinite": ([{"x": np.full_like(GOOD, np.inf)}], "(?i)inf|finite"),
    "an error at once": (
        [ValueError("no such image")],
        r"Reader\.get_next\(\) for sample 0 raised ValueError: no such",
    ),
    "an error midway": ([*SAMPLES, OSError("disk gone")], r"get_next\(\) for sample 2 raised OSError: disk gone"),
}


@pytest.mark.parametrize("config", [StaticQuantConfig, SmoothQuantConfig, GPTQConfig], ids=lambda c: c.__name__)
@pytest.mark.parametrize("given", READERS)
def test_data_that_does_not_fit(given: str, config: Any, tmp_path: Path) -> None:
    samples, message = READERS[given]
    with pytest.raises(CalibrationError, match=message) as caught:
        quantize(model(), tmp_path / "out.onnx", config(), calibration_data_reader=Reader(samples))
    if errors := [sample for sample in samples if isinstance(sample, Exception)]:
        assert caught.value.__cause__ is errors[0]
    assert not list(tmp_path.iterdir())


def test_a_rewind_that_fails_is_not_taken_for_none(tmp_path: Path) -> None:
    class Broken(Reader):
        def rewind(self) -> None:
            super().rewind()
            if hasattr(self, "ready"):
                raise AttributeError("a slip of the user")

    reader = Broken()
    reader.ready = True  # type: ignore[attr-defined]
    with pytest.raises(CalibrationError, match=r"Broken\.rewind\(\) raised AttributeError: a slip"):
        quantize(model(), tmp_path / "out.onnx", StaticQuantConfig(reader))


# --- names that are no regular expressions ---------------------------------------------------------------------------

NAMES = ["a[0].+*?", "(", "*", "a\\", "a[", "layer[0](x){2,1}", "?\n'\""]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kept",
    [
        lambda name: RTNConfig(nodes_to_exclude=[name]),
        lambda name: RTNConfig().set_local(name, RTNConfig(weight_dtype="fp32")),
        lambda name: DynamicQuantConfig(nodes_to_exclude=[name]),
    ],
    ids=["nodes_to_exclude", "set_local", "dynamic"],
)
def test_a_name_that_is_no_regular_expression(name: str, kept: Callable[[str], Any]) -> None:
    named = model()
    named.graph.node[0].name = name
    new = quantize(named, None, kept(name))
    assert new is not None
    assert {node.name: node.op_type for node in new.graph.node}[name] == "MatMul"
    with pytest.raises(ConfigError, match="matches no"):
        quantize(model(), None, kept(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_for_a_name_that_is_no_regular_expression(name: str) -> None:
    named = model()
    named.graph.node[0].name = name
    rules = PostTrainingQuantConfig(op_name_dict={name: {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}})
    capability = ONNXRTAdaptor({"dataloader": SAMPLES}).query_fw_capability(named)
    ops = build_space(capability, rules).ops
    assert not ops[name, "MatMul"].quantized
    assert ops["second", "MatMul"].quantized
    capability = ONNXRTAdaptor({"dataloader": SAMPLES}).query_fw_capability(model())
    with pytest.raises(ConfigError, match="matches no op name"):
        build_space(capability, rules)


# --- evaluations -----------------------------------------------------------------------------------------------------


def failing_on_quantized(path: str) -> float:
    if any(node.op_type not in {"MatMul", "Relu"} for node in onnx.load(path).graph.node):
        raise ZeroDivisionError("no images")
    return 1.0


def failing_always(path: str) -> float:
    raise KeyError("labels")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing_on_quantized, r"failing_on_quantized raised ZeroDivisionError: no images"),
        (failing_always, r"failing_always raised KeyError: 'labels'"),
        (lambda path: None, r"<lambda> returned None"),
        (lambda path: float("nan"), r"<lambda> returned nan"),
        (lambda path: "0.9%", r"<lambda> returned a str"),
        (lambda path: np.zeros(3), r"<lambda> returned a ndarray of shape \(3,\)"),
    ],
    ids=["on quantized models", "always", "None", "NaN", "text", "array"],
)
def test_an_evaluation_that_fails_is_told_by_its_name(
    function: Callable[[str], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EvaluationError, match=message):
        autotune(model(), TuningConfig(RTNConfig(weight_bits=8), workspace=tmp_path), function)


def test_a_trial_that_fails_is_in_the_report(tmp_path: Path) -> None:
    """The others go on."""
    calls: list[str] = []

    def evaluate(path: str) -> float:
        calls.append(path)
        if len(calls) == 2:
            raise ZeroDivisionError("no images")
        return 1.0

    tuning = TuningConfig([RTNConfig(weight_bits=4), RTNConfig(weight_bits=8)], workspace=tmp_path)
    best = autotune(model(), tuning, evaluate)
    assert len(calls) == 3
    assert best.graph.node
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "evaluate raised ZeroDivisionError: no images" in report
