"""Edits of a graph: names stay unique, outputs keep theirs, and what nobody needs goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.editor import MICROSOFT, GraphEditor, discard
from neural_compressor.onnx.runtime.session import make_session

X = np.float32([[1, -2], [3, 4]])


def model_of(*nodes: Any, output: str = "y", **weights: np.ndarray) -> ir.Model:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [2, 2])]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, tensors)
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def run(model: ir.Model) -> np.ndarray:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model).run(None, {"x": X})[0]


def test_a_new_name_is_one_that_nothing_has() -> None:
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 2])
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["inner"], name="node")], "b", [], [output])
    model = model_of(
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=branch, else_branch=branch),
        flag=np.asarray(True),
    )
    editor = GraphEditor(model)
    assert [editor.fresh(name) for name in ("x", "flag", "inner", "node", "new", "new")] == [
        "x_2",
        "flag_2",
        "inner_2",
        "node_2",
        "new",
        "new_2",
    ]


def test_a_constant_keeps_its_shape_and_bytes() -> None:
    model = model_of(helper.make_node("Relu", ["x"], ["y"], name="relu"))
    editor = GraphEditor(model)
    scalar = editor.weight("w", np.asarray(np.float32(3)), model.graph)
    turned = editor.weight("w", np.arange(6).reshape(2, 3).T, model.graph)
    assert (scalar.name, turned.name) == ("w", "w_2")
    assert scalar.shape == []
    np.testing.assert_array_equal(turned.const_value.numpy(), [[0, 3], [1, 4], [2, 5]])
    assert set(model.graph.initializers) == {"w", "w_2"}


def test_what_replaces_a_node_takes_over_its_names() -> None:
    model = model_of(
        helper.make_node("Transpose", ["w"], ["t"], name="turn"),
        helper.make_node("MatMul", ["x", "t"], ["y"], name="mm"),
        w=np.float32([[1, 2], [3, 4]]),
    )
    editor = GraphEditor(model)
    node = list(model.graph)[1]
    doubled = editor.insert(node, "Add", [node.inputs[0], node.inputs[0]])[0]
    editor.replace(node, editor.insert(node, "Neg", [doubled]))
    np.testing.assert_array_equal(run(model), -2 * X)
    assert [(n.op_type, n.name) for n in model.graph] == [("Add", "mm_Add"), ("Neg", "mm")]
    assert not model.graph.initializers


def test_the_domain_of_a_new_node_is_imported() -> None:
    model = model_of(helper.make_node("Relu", ["x"], ["y"], name="relu"))
    editor = GraphEditor(model)
    node = next(iter(model.graph))
    editor.replace(node, editor.insert(node, "Gelu", [node.inputs[0]], domain=MICROSOFT))
    assert model.opset_imports[MICROSOFT] == 1
    assert run(model).shape == (2, 2)


def test_what_somebody_reads_stays() -> None:
    model = model_of(
        helper.make_node("Identity", ["w"], ["i"], name="id"),
        helper.make_node("Add", ["x", "i"], ["y"], name="add"),
        w=np.float32([[1, 2], [3, 4]]),
    )
    for name in ("i", "w", "x", "y"):
        values = {v.name: v for n in model.graph for v in (*n.inputs, *n.outputs) if v is not None}
        discard(values[name])
    np.testing.assert_array_equal(run(model), X + np.float32([[1, 2], [3, 4]]))
    discard(None)
