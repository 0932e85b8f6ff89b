"""Models written weight after weight: the same message as if it were made whole first."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.onnx.files import mapped_file
from neural_compressor.onnx.files.mapped_file import write_one_file


def initializer(array, name):
    return numpy_helper.from_array(array, name)


@pytest.fixture
def proto():
    """Weights of several types, one in a subgraph, one that is an input too, and texts all around."""
    generator = np.random.default_rng(0)
    weights = [
        initializer(generator.standard_normal((3, 4)).astype(np.float32), "w"),
        initializer(generator.standard_normal((4,)).astype(np.float32), "also_input"),
        initializer(np.float32(3), "scalar"),
        initializer(np.zeros((0, 4), np.float32), "empty"),
        initializer(np.array([b"a", b"bc"], dtype=object), "strings"),
        helper.make_tensor("int4", TensorProto.INT4, [5], [-8, -1, 0, 3, 7]),
        helper.make_tensor("half", TensorProto.BFLOAT16, [3], [1.0, -2.0, 0.5]),
    ]
    weights[0].doc_string = "with a text"
    branch = helper.make_graph(
        [helper.make_node("Add", ["product", "inner"], ["taken"])],
        "branch",
        [],
        [helper.make_tensor_value_info("taken", TensorProto.FLOAT, None)],
        [initializer(np.arange(4, dtype=np.float32), "inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["product"], ["left"])],
        "other",
        [],
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["plain"]),
        helper.make_node("Mul", ["plain", "scalar"], ["times"]),
        helper.make_node("Add", ["times", "also_input"], ["product"]),
        helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=other),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("which", TensorProto.BOOL, []),
        helper.make_tensor_value_info("also_input", TensorProto.FLOAT, [4]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "mixed", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.metadata_props.add(key="who", value="what")
    return model


def by_name(proto):
    """The message, and what its initializers hold: their order, and the field they hold it in, say nothing."""
    weights = {
        tensor.name: (tensor.data_type, [*tensor.dims], tensor.doc_string, numpy_helper.to_array(tensor).tolist())
        for tensor in proto.graph.initializer
    }
    rest = onnx.ModelProto.FromString(proto.SerializeToString())
    del rest.graph.initializer[:]
    return rest, weights


@pytest.mark.parametrize("at_once", [0, 8, 1 << 20])
def test_it_is_the_message_that_would_be_made_whole(proto, at_once, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(mapped_file, "_AT_ONCE", at_once)
    model = ir.from_proto(proto)
    path = tmp_path / "m.onnx"
    write_one_file(model, path)

    written, expected = onnx.load(path), ir.to_proto(model)
    assert by_name(written) == by_name(expected)
    onnx.checker.check_model(written)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.ones((2, 3), np.float32)
    for which in (False, True):
        (y,) = session.run(None, {"x": x, "which": np.array(which)})
        weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        w, bias = (numpy_helper.to_array(weights[name]) for name in ("w", "also_input"))
        np.testing.assert_allclose(y, 3 * x @ w + bias + which * np.arange(4), rtol=1e-5)


def test_weights_in_files_of_their_own_are_taken_in(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [initializer(weight, "w")]
    )
    onnx.save(helper.make_model(graph), tmp_path / "split.onnx", save_as_external_data=True, size_threshold=0)
    model = ir.load(tmp_path / "split.onnx")
    write_one_file(model, tmp_path / "one.onnx")

    (written,) = onnx.load(tmp_path / "one.onnx", load_external_data=False).graph.initializer
    assert np.array_equal(numpy_helper.to_array(written), weight)
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), weight)
