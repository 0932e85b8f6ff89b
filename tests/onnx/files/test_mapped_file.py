"""Weights mapped from the file of a model: the same model, read when it is looked at."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.errors import FormatError
from neural_compressor.onnx.files import mapped_file
from neural_compressor.onnx.files.mapped_file import MappedTensor, map_external, read_mapped, release
from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.runtime.session import make_session

WEIGHT = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(mapped_file, "_LARGE", 16)


@pytest.fixture
def proto():
    weights = [
        numpy_helper.from_array(WEIGHT, "w"),
        numpy_helper.from_array(np.arange(40, dtype=np.int64), "counts"),
        helper.make_tensor("half", TensorProto.BFLOAT16, [20], np.arange(20), raw=False),
        helper.make_tensor("packed", TensorProto.INT4, [64], np.full(32, 0x21, np.uint8).tobytes(), raw=True),
        helper.make_tensor("listed", TensorProto.FLOAT, [30], np.ones(30)),
        numpy_helper.from_array(np.float32(2), "scalar"),
    ]
    weights[0].doc_string = "with a text"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 5), ("y", 7)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "scalar"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture
def path(proto, tmp_path):
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def mapped(model):
    return {name for name, value in model.graph.initializers.items() if isinstance(value.const_value, MappedTensor)}


def test_it_is_the_same_model(path: Path) -> None:
    found, expected = read_mapped(path), ir.load(path)
    assert mapped(found) == {"w", "counts"}
    assert list(found.graph.initializers) == list(expected.graph.initializers)
    for name, value in expected.graph.initializers.items():
        tensor, own = value.const_value, found.graph.initializers[name].const_value
        assert (own.dtype, own.shape, own.doc_string) == (tensor.dtype, tensor.shape, tensor.doc_string)
        np.testing.assert_array_equal(own.numpy(), tensor.numpy())
    assert [node.op_type for node in found.graph] == ["MatMul", "Mul"]


def test_large_constants_are_mapped_too_and_are_initializers_then(proto, tmp_path: Path) -> None:
    constants = {
        "w": helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHT, "inner")),
        "given": helper.make_node("Constant", [], ["given"], value=numpy_helper.from_array(WEIGHT)),
        "listed": helper.make_node("Constant", [], ["listed"], value_floats=[1.0] * 30),
        "mine": helper.make_node("Constant", [], ["mine"], domain="mine", value=numpy_helper.from_array(WEIGHT)),
    }
    nodes, weights = (
        [*constants.values(), *proto.graph.node],
        [w for w in proto.graph.initializer if w.name == "scalar"],
    )
    for field, content in (("node", nodes), ("initializer", weights)):
        proto.graph.ClearField(field)
        getattr(proto.graph, field).extend(content)
    proto.graph.output.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, [5, 7]))
    onnx.save(proto, tmp_path / "m.onnx")
    model = read_mapped(tmp_path / "m.onnx")
    assert mapped(model) == {"w"}
    assert [node.outputs[0].name for node in model.graph] == ["given", "listed", "mine", "p", "y"]
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), WEIGHT)
    assert model.graph.initializers["w"].uses()


def test_it_runs_and_is_written_again(path: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("neural_compressor.onnx.runtime.session._BY_REFERENCE", 16)
    model, x = read_mapped(path), np.ones((2, 5), np.float32)
    (y,) = make_session(model).run(None, {"x": x})
    np.testing.assert_allclose(y, 2 * x @ WEIGHT, rtol=1e-6)
    write_model(model, tmp_path / "again.onnx")
    (weight,) = (t for t in onnx.load(tmp_path / "again.onnx").graph.initializer if t.name == "w")
    assert np.array_equal(numpy_helper.to_array(weight), WEIGHT)


def test_what_was_mapped_stays_when_the_file_is_replaced(path: Path) -> None:
    model = read_model(path)
    write_model(ir.from_proto(onnx.load(path)), path)
    path.unlink()
    tensor = model.graph.initializers["w"].const_value
    release(tensor)
    assert np.array_equal(tensor.numpy(), WEIGHT)


def test_memory_is_given_back_and_the_numbers_stay(tmp_path: Path) -> None:
    big = np.random.default_rng(1).standard_normal((256, 1024)).astype(np.float32)
    y = helper.make_tensor_value_info("w", TensorProto.FLOAT, big.shape)
    graph = helper.make_graph([], "g", [], [y], [numpy_helper.from_array(big, "w")])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    tensor = read_mapped(tmp_path / "m.onnx").graph.initializers["w"].const_value
    for _ in range(2):
        assert np.array_equal(tensor.numpy(), big)
        release(tensor)


def test_external_data_outlives_its_file(proto, tmp_path: Path) -> None:
    split = onnx.ModelProto.FromString(proto.SerializeToString())
    onnx.save(split, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    model = read_model(tmp_path / "m.onnx")
    map_external(model)
    (tmp_path / "m.data").unlink()
    assert mapped(model) >= {"w", "counts"}
    for tensor in proto.graph.initializer:
        found = model.graph.initializers[tensor.name].const_value
        release(found)
        np.testing.assert_array_equal(found.numpy(), numpy_helper.to_array(tensor))


@pytest.mark.parametrize("cut", [1, 40, 200, 400])
def test_a_truncated_file_is_refused(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FormatError, match="truncated"):
        read_model(path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\x0b" * 100, b"\xff" * 100, b"not a model at all"])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not an ONNX model"):
        read_model(path)


def test_a_weight_of_another_size_than_it_says_is_refused(proto, tmp_path: Path) -> None:
    proto.graph.initializer[0].dims[:] = [5, 8]
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(FormatError, match=r"weight 'w' has 140 bytes, and its shape \[5, 8\] needs 160"):
        read_mapped(tmp_path / "m.onnx")
