"""Weights seen from the channels of what they are multiplied with."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.linear_ops import linear_ops
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.runtime.session import make_session

rng = np.random.default_rng(0)
CASES = {
    "MatMul": ("MatMul", {}, (6, 4), (5, 6)),
    "Gemm": ("Gemm", {}, (6, 4), (5, 6)),
    "Gemm transB": ("Gemm", {"transB": 1}, (4, 6), (5, 6)),
    "Conv": ("Conv", {}, (4, 6, 3, 3), (2, 6, 5, 5)),
    "Conv of two groups": ("Conv", {"group": 2}, (4, 3, 3, 3), (2, 6, 5, 5)),
    "depthwise Conv": ("Conv", {"group": 6}, (12, 1, 3), (2, 6, 5)),
}


def make(build, kind, attributes, weight, x):
    node = helper.make_node(kind, ["x", "w"], ["y"], **attributes)
    return normalise(ir.from_proto(build([node], {"x": x}, {"y": None}, {"w": rng.normal(size=weight)})))


@pytest.mark.parametrize("case", CASES)
def test_a_scaled_weight_undoes_a_scale_of_the_input(build, case):
    kind, attributes, shape, x = CASES[case]
    model = make(build, kind, attributes, shape, list(x))
    (op,) = linear_ops(model)
    assert len(op.rows(op.weight)) == 6
    feed, scale = rng.normal(size=x).astype(np.float32), rng.uniform(0.1, 9, 6).astype(np.float32)
    expected = make_session(model).run(None, {"x": feed})[0]
    op.node.inputs[1].const_value = ir.tensor(op.scaled(scale).astype(np.float32), name="w")
    along = [-1 if axis == op.axis % len(x) else 1 for axis in range(len(x))]
    actual = make_session(model).run(None, {"x": feed / scale.reshape(along)})[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_rows_hold_what_a_channel_meets(build, case):
    kind, attributes, shape, x = CASES[case]
    model = make(build, kind, attributes, shape, list(x))
    (op,) = linear_ops(model)
    one = np.zeros(x, np.float32)
    one[(0, 2, *[x[2] // 2] * (len(x) - 2)) if op.axis == 1 else (0, 2)] = 1  # channel 2 alone
    seen = make_session(model).run(None, {"x": one})[0][0]
    np.testing.assert_allclose(np.sort(seen[seen != 0]), np.sort(op.rows(op.weight)[2]), rtol=1e-5)


def test_what_has_no_constant_weight_or_another_layout_is_no_linear_op(build):
    def count(node, inputs, constants):
        return len(list(linear_ops(normalise(ir.from_proto(build([node], inputs, {"y": None}, constants))))))

    matrix = {"w": np.ones((6, 6))}
    assert count(helper.make_node("MatMul", ["x", "z"], ["y"]), {"x": [6, 6], "z": [6, 6]}, {}) == 0
    assert count(helper.make_node("MatMul", ["w", "x"], ["y"]), {"x": [6, 6]}, matrix) == 0
    assert count(helper.make_node("Gemm", ["x", "w"], ["y"], transA=1), {"x": [6, 6]}, matrix) == 0
    assert count(helper.make_node("MatMul", ["x", "w"], ["y"]), {"x": [6, 6]}, matrix) == 1


def test_an_op_type_that_cannot_be_smoothed_is_an_error(build):
    model = make(build, *CASES["MatMul"][:3], ["n", 6])
    with pytest.raises(ConfigError, match="did you mean 'MatMul'"):
        list(linear_ops(model, ["Matmul"]))
