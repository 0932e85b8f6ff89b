"""A quantized op gives the same at every level of optimisation, up to the rounding of a value between two integers.

Integer kernels multiply sums by one factor where quantizers around float ones scale inputs first: what falls between two
integers may go to either. Deep networks carry such a step on, as they do one in their input.
"""

import numpy as np
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.graph.queries import constant
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import OpScheme, PerChannel, Plan, TensorScheme

IMAGE = ["n", 8, 10, 10]
OPS = {
    "Conv": ([IMAGE], {"w": (16, 8, 3, 3), "b": (16,)}, {"pads": [1, 1, 1, 1]}),
    "depthwise Conv": ([IMAGE], {"w": (8, 1, 3, 3)}, {"group": 8}),
    "Gemm": ([["n", 64]], {"w": (64, 32), "b": (32,)}, {}),
    "MatMul": ([["n", 5, 64]], {"w": (64, 32)}, {}),
    "Add": ([IMAGE, IMAGE], {}, {}),
    "Mul": ([IMAGE, IMAGE], {}, {}),
    "Concat": ([IMAGE, IMAGE], {}, {"axis": 1}),
    "AveragePool": ([IMAGE], {}, {"kernel_shape": [3, 3]}),
    "GlobalAveragePool": ([IMAGE], {}, {}),
    "LeakyRelu": ([IMAGE], {}, {"alpha": 0.1}),
    "Sigmoid": ([IMAGE], {}, {}),
    "Softmax": ([["n", 64]], {}, {"axis": -1}),
}


class Once:
    """One sample, as often as it is asked for."""

    def __init__(self, sample):
        self.sample = sample
        self.rewind()

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter([self.sample])


def quantized(name, build, samples):
    shapes, weights, attributes = OPS[name]
    rng = np.random.default_rng(0)
    arrays = {key: 0.2 * rng.normal(size=shape) for key, shape in weights.items()}
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    node = helper.make_node(name.split()[-1], [*inputs, *arrays], ["y"], name="op", **attributes)
    rank = len(shapes[0])
    model = normalise(read_model(build([node], inputs, {"y": [None] * rank}, arrays)))
    weight = TensorScheme(dtype("int8"), symmetric=True, granularity=PerChannel(0), pair_safe=True)
    scheme = OpScheme(weight if "w" in weights else None, TensorScheme(dtype("uint8"), symmetric=False), "static")
    plan = Plan(dict.fromkeys(quantizable_nodes(model), scheme))
    return quantize_static(model, plan, Samples(Once(samples)), StaticOptions(named=["op"]))


def sample(name, factor=1.0):
    rng = np.random.default_rng(1)
    shapes = [[4 if size == "n" else size for size in shape] for shape in OPS[name][0]]
    return {f"x{i}": (factor * rng.normal(size=shape)).astype(np.float32) for i, shape in enumerate(shapes)}


def step(model):
    """How far apart the values are that the output can have; of a float output nothing but noise is allowed."""
    last = model.graph.outputs[0].producer()
    return float(constant(last.inputs[1])) if last.op_type == "DequantizeLinear" else 0.0


@pytest.mark.parametrize("name", OPS)
def test_one_op_is_off_by_one_step_at_most(name, build):
    given = sample(name)
    model = quantized(name, build, given)
    plain, *others = (make_session(model, level=each).run(None, given)[0] for each in ("none", "basic", "all"))
    for found in others:
        assert np.abs(found - plain).max() <= 1.001 * step(model) + 1e-5 * np.abs(plain).max()
    differing = np.mean(np.abs(others[-1] - plain) > 0.5 * step(model)) if step(model) else 0.0
    # The integer Softmax adds up exponentials that are rounded themselves.
    assert differing < (0.05 if name == "Softmax" else 0.01)


def test_sums_at_half_a_step_may_go_either_way(build):
    given = sample("Add")
    largest = max(np.abs(array).max() for array in given.values())
    for array in given.values():
        array.flat[:2] = -largest, largest
    model = quantized("Add", build, given)
    scales = [float(constant(node.inputs[1])) for node in model.graph if node.op_type == "QuantizeLinear"]
    # Every other sum is between two integers, and the two ways of adding do not agree which to take.
    np.testing.assert_allclose(scales, np.array([1, 1, 2]) * min(scales), rtol=1e-6)
    plain, fused = (make_session(model, level=each).run(None, given)[0] for each in ("none", "all"))
    assert np.abs(fused - plain).max() <= 1.001 * step(model)
    assert abs(np.mean(fused - plain)) < 0.05 * step(model)
