"""A graph in its normal form computes what it computed before."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.errors import FormatError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import EarlyPasses, normalise, opset
from neural_compressor.onnx.graph.queries import constant, is_float, standard
from neural_compressor.onnx.runtime.session import make_session

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
FLOAT_IN = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
FLOAT_OUT = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]


def model_of(nodes: list[Any], version: int = 17, **graph: Any) -> onnx.ModelProto:
    functions = graph.pop("functions", [])
    built = helper.make_graph(nodes, "g", graph.pop("inputs", FLOAT_IN), FLOAT_OUT, **graph)
    imports = [helper.make_opsetid("", version), helper.make_opsetid("mine", 1)]
    return helper.make_model(built, opset_imports=imports, ir_version=9, functions=functions)


def run(session: Any) -> np.ndarray:
    return session.run(None, {"x": X})[0]


def check(proto: onnx.ModelProto) -> Any:
    """The normal form, after making sure that it computes the same, and is the same with what was done early."""
    expected = run(ort.InferenceSession(proto.SerializeToString()))
    model, early = normalise(read_model(proto)), EarlyPasses()
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, Path(folder, "model.onnx"))
        other = normalise(read_model(Path(folder, "model.onnx"), early), inferred=early.inferred)
    assert early.inferred == (not proto.functions)
    assert seen(other) == seen(model)
    for each in (model, other):
        np.testing.assert_allclose(run(make_session(each)), expected, rtol=1e-6)
    return model


def seen(model: ir.Model) -> list[Any]:
    """The types and names of nodes, and what is known of their outputs."""
    return [
        (node.op_type, node.name, [(str(value.type), str(value.shape)) for value in node.outputs])
        for node in model.graph.all_nodes()
    ]


def test_constants_become_initializers_and_wrong_shapes_are_dropped() -> None:
    wrong = helper.make_tensor_value_info("h", TensorProto.FLOAT, [7, 9])
    model = check(
        model_of(
            [
                helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W)),
                helper.make_node("MatMul", ["x", "w"], ["h"]),
                helper.make_node("Relu", ["h"], ["y"]),
            ],
            value_info=[wrong],
        )
    )
    first, second = model.graph
    assert (first.op_type, second.op_type) == ("MatMul", "Relu")
    np.testing.assert_array_equal(constant(first.inputs[1]), W)
    assert constant(first.inputs[0]) is None
    assert first.outputs[0].shape[1] == 4
    assert is_float(first.outputs[0])


def test_a_constant_that_is_an_output_keeps_its_node() -> None:
    model = check(model_of([helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(W))]))
    assert [node.op_type for node in model.graph] == ["Constant"]


def test_nodes_get_names_of_their_own() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="same"),
        helper.make_node("Relu", ["h"], ["i"], name="same"),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    model = normalise(read_model(model_of(nodes)))
    names = [node.name for node in model.graph]
    assert len(set(names)) == 3
    assert names[0] == "same"
    assert all(names)
    np.testing.assert_array_equal(run(make_session(model)), np.maximum(X, 0))


def test_functions_are_inlined() -> None:
    twice = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = check(model_of([helper.make_node("Twice", ["x"], ["y"], domain="mine")], functions=[twice]))
    assert [node.op_type for node in model.graph] == ["Add"]


def test_weights_that_are_inputs_become_constants() -> None:
    inputs = [*FLOAT_IN, helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 4])]
    initializer = [numpy_helper.from_array(W, "w")]
    model = check(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs=inputs, initializer=initializer))
    assert [value.name for value in model.graph.inputs] == ["x"]
    np.testing.assert_array_equal(constant(next(iter(model.graph)).inputs[1]), W)


def test_an_old_opset_is_raised_and_large_weights_stay_where_they_are() -> None:
    large = np.random.default_rng(2).standard_normal((3, 200)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["y"], axes=[1]),  # an input, not an attribute, from 13 on
    ]
    proto = model_of(nodes, version=11, initializer=[numpy_helper.from_array(large, "w")])
    model = check(proto)
    assert opset(model) == 14
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert standard(list(model.graph)[1], "ReduceSum")


def test_an_opset_that_cannot_be_raised_says_so() -> None:
    proto = model_of([helper.make_node("Unknown", ["x"], ["y"])], version=7)
    with pytest.raises(FormatError, match="opset 7 and cannot be raised to 14"):
        normalise(read_model(proto))


def test_a_subgraph_keeps_what_it_captures() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["x"], ["b"])],
            kind,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        )
        for kind in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    check(model_of(nodes))


@pytest.mark.parametrize("outputs", [["h"], ["h", "y"]])
def test_a_session_gives_any_value(outputs: list[str]) -> None:
    proto = model_of([helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])])
    model = normalise(read_model(proto))
    found = make_session(model, outputs).run(None, {"x": X})
    expected = {"h": -X, "y": np.maximum(-X, 0)}
    for name, array in zip(outputs, found, strict=True):
        np.testing.assert_array_equal(array, expected[name])
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_large_weights_reach_the_runtime_by_reference() -> None:
    large = np.random.default_rng(3).standard_normal((3, 1 << 18)).astype(np.float32)
    proto = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], initializer=[numpy_helper.from_array(large, "w")])
    model = check(proto)
    np.testing.assert_array_equal(constant(next(iter(model.graph)).inputs[1]), large)


def test_a_model_the_runtime_refuses() -> None:
    proto = model_of([helper.make_node("NoSuchOperator", ["x"], ["y"])])
    with pytest.raises(FormatError, match="NoSuchOperator"):
        make_session(read_model(proto))


def test_sequences_are_not_taken_for_tensors() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1),
        helper.make_node("Identity", ["parts"], ["same"]),
        helper.make_node("ConcatFromSequence", ["same"], ["y"], axis=1),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 4]) for name in "xy")
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    model = normalise(read_model(proto))
    assert not any(isinstance(value.type, ir.TensorType) for node in list(model.graph)[:2] for value in node.outputs)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    given = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    (found,) = make_session(model).run(None, {"x": given})
    assert (found == given).all()
