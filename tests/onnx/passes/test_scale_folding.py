"""Factors on the channels of a value, put into the constants of what makes it."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.passes.scale_folding import Channels, apply_folds, find_folds
from neural_compressor.onnx.runtime.session import make_session

rng = np.random.default_rng(0)
C = 6


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)


LAST = {
    "LayerNormalization": ([node("LayerNormalization", ["x", "a", "b"], "v", axis=-1)], {"a": (C,), "b": (C,)}),
    "LayerNormalization without bias": ([node("LayerNormalization", ["x", "a"], "v", axis=-1)], {"a": (C,)}),
    "Mul": ([node("Mul", ["x", "a"], "v")], {"a": (C,)}),
    "Mul from the left, one number": ([node("Mul", ["a", "x"], "v")], {"a": ()}),
    "Div": ([node("Div", ["x", "a"], "v")], {"a": (1, C)}),
    "Div of a constant": ([node("Div", ["a", "x"], "v")], {"a": (C,)}),
    "Mul, Add": ([node("Mul", ["x", "a"], "m"), node("Add", ["m", "b"], "v")], {"a": (C,), "b": (C,)}),
    "Mul, Sub from": ([node("Mul", ["x", "a"], "m"), node("Sub", ["b", "m"], "v")], {"a": (C,), "b": (1,)}),
    "MatMul": ([node("MatMul", ["x", "a"], "v")], {"a": (C, C)}),
    "Gemm": ([node("Gemm", ["x", "a", "b"], "v", alpha=0.5)], {"a": (C, C), "b": (C,)}),
    "Gemm transB": ([node("Gemm", ["x", "a", "b"], "v", transB=1)], {"a": (C, C), "b": (1, C)}),
    "MatMul, Relu": ([node("MatMul", ["x", "a"], "m"), node("Relu", ["m"], "v")], {"a": (C, C)}),
    "two factors": (
        [node("MatMul", ["x", "a"], "m"), node("Sigmoid", ["x"], "s"), node("Mul", ["s", "m"], "v")],
        {"a": (C, C)},
    ),
}
IMAGES = {
    "Conv": ([node("Conv", ["x", "a", "b"], "v")], {"a": (C, C, 1, 1), "b": (C,)}),
    "Conv of groups": ([node("Conv", ["x", "a"], "v", group=2)], {"a": (C, C // 2, 1, 1)}),
    "BatchNormalization": (
        [node("BatchNormalization", ["x", "a", "b", "m", "s"], "v")],
        {"a": (C,), "b": (C,), "m": (C,), "s": (C,)},
    ),
    "Conv, MaxPool": (
        [node("Conv", ["x", "a"], "c"), node("MaxPool", ["c"], "v", kernel_shape=[2, 2])],
        {"a": (C, C, 1, 1)},
    ),
    "Mul": ([node("Mul", ["x", "a"], "v")], {"a": (C, 1, 1)}),
}


def make(build, nodes, shapes, x, readers=1):
    constants = {name: np.abs(rng.normal(size=shape)) + 0.5 for name, shape in shapes.items()}
    ends = [node("Softplus", ["v"], f"y{i}", name=f"end{i}") for i in range(readers)]
    outputs = {f"y{i}": None for i in range(readers)}
    return normalise(ir.from_proto(build([*nodes, *ends], {"x": x}, outputs, constants)))


def value_of(model, name):
    return next(v for n in model.graph for v in n.outputs if v.name == name)


def run(model, feed):
    return make_session(model, ["v"]).run(None, {"x": feed})[0]


@pytest.mark.parametrize("case", LAST)
def test_factor_along_the_last_axis(build, case):
    model = make(build, *LAST[case], ["n", C])
    factor, feed = rng.uniform(0.2, 5, C).astype(np.float32), rng.normal(size=(5, C)).astype(np.float32)
    expected, count = run(model, feed) * factor, len(list(model.graph))
    folds = find_folds(value_of(model, "v"), Channels(C, -1, 2))
    apply_folds(GraphEditor(model), folds, factor)
    np.testing.assert_allclose(run(model, feed), expected, rtol=1e-5, atol=1e-5)
    assert len(list(model.graph)) == count


@pytest.mark.parametrize("case", IMAGES)
def test_factor_along_the_channels_of_images(build, case):
    model = make(build, *IMAGES[case], ["n", C, 4, 4])
    factor, feed = rng.uniform(0.2, 5, C).astype(np.float32), rng.normal(size=(2, C, 4, 4)).astype(np.float32)
    expected = run(model, feed) * factor.reshape(-1, 1, 1)
    apply_folds(GraphEditor(model), find_folds(value_of(model, "v"), Channels(C, 1, 4)), factor)
    np.testing.assert_allclose(run(model, feed), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "shapes"),
    [
        ([node("Sigmoid", ["x"], "v")], {}),
        ([node("Add", ["x", "a"], "v")], {"a": (C,)}),
        ([node("Add", ["x", "x"], "v")], {}),
        ([node("Mul", ["x", "x"], "v")], {}),
        ([node("MatMul", ["x", "a"], "m"), node("Sigmoid", ["m"], "v")], {"a": (C, C)}),
        # One gate for all channels: with the factor it would be as wide as they are.
        ([node("Sigmoid", ["x"], "s"), node("MatMul", ["x", "a"], "g"), node("Mul", ["s", "g"], "v")], {"a": (C, 1)}),
    ],
    ids=["Sigmoid", "Add to an input", "Add twice", "square", "Sigmoid behind", "one gate"],
)
def test_what_cannot_take_the_factor_exactly_is_left_alone(build, nodes, shapes):
    assert find_folds(value_of(make(build, nodes, shapes, ["n", C]), "v"), Channels(C, -1, 2)) is None


def test_a_value_with_other_readers_or_that_is_an_output_is_left_alone(build):
    model = make(build, *LAST["MatMul"], ["n", C], readers=2)
    value = value_of(model, "v")
    assert find_folds(value, Channels(C, -1, 2)) is None
    assert find_folds(value, Channels(C, -1, 2), consumers=2) is not None
    model.graph.outputs.append(value)
    assert find_folds(value, Channels(C, -1, 2), consumers=2) is None


def test_other_readers_of_a_constant_keep_it(build):
    nodes = [node("Mul", ["x", "a"], "v"), node("Mul", ["x", "a"], "w"), node("Softplus", ["w"], "z")]
    last = node("Softplus", ["v"], "y")
    proto = build([*nodes, last], {"x": ["n", C]}, {"y": None, "z": None}, {"a": np.ones(C)})
    model = normalise(ir.from_proto(proto))
    feed = rng.normal(size=(3, C)).astype(np.float32)
    before = make_session(model, ["v", "w"]).run(None, {"x": feed})
    apply_folds(GraphEditor(model), find_folds(value_of(model, "v"), Channels(C, -1, 2)), np.full(C, 3, np.float32))
    after = make_session(model, ["v", "w"]).run(None, {"x": feed})
    np.testing.assert_allclose(after[0], 3 * before[0], rtol=1e-6)
    np.testing.assert_array_equal(after[1], before[1])
