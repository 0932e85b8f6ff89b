"""Small models and data."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader

FC_IN, FC_OUT = "/h.4/mlp/fc_in/MatMul", "/h.4/mlp/fc_out/MatMul"


class Reader(CalibrationDataReader):
    """Hands out samples, and counts how often it started."""

    def __init__(self, samples):
        self.samples, self.starts = list(samples), 0
        self.rewind()

    def get_next(self):
        return next(self._rest, None)

    def rewind(self):
        self.starts += 1
        self._rest = iter(self.samples)


class OncePlease:
    """A reader without ``rewind``."""

    def __init__(self, samples):
        self._rest = iter(samples)

    def get_next(self):
        return next(self._rest, None)


def build(nodes, inputs, outputs, weights, opset=17, **more):
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs + outputs}
    graph = helper.make_graph(
        nodes,
        "small",
        [values[name] for name, _ in inputs],
        [values[name] for name, _ in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **more)


def random(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


@pytest.fixture
def mlp():
    """Two products, named as exporters name those of a transformer."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name=FC_IN),
        helper.make_node("Add", ["a", "b1"], ["b"], name="/h.4/mlp/fc_in/Add"),
        helper.make_node("Relu", ["b"], ["c"], name="/h.4/mlp/act/Relu"),
        helper.make_node("MatMul", ["c", "w2"], ["y"], name=FC_OUT),
    ]
    weights = {"w1": random(64, 96, seed=1), "b1": random(96, seed=2), "w2": random(96, 64, seed=3)}
    return build(nodes, [("x", ["n", 64])], [("y", ["n", 64])], weights)


@pytest.fixture
def convnet():
    """A convolution with its normalisation, and a classifier."""
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "var"], ["n"], name="bn"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fw", "fb"], ["y"], name="head", transB=1),
    ]
    weights = {"w": random(16, 3, 3, 3, seed=1), "b": random(16, seed=2), "fw": random(10, 16, seed=3)}
    weights |= {"fb": random(10, seed=4), "shift": random(16, seed=5), "mean": random(16, seed=6)}
    weights |= {name: np.abs(random(16, seed=7)) + np.float32(0.5) for name in ("scale", "var")}
    return build(nodes, [("image", ["n", 3, 8, 8])], [("y", ["n", 10])], weights)


@pytest.fixture
def vectors():
    """Samples for the product model."""
    return [{"x": random(4, 64, seed=10 + i) * 3} for i in range(8)]


@pytest.fixture
def images():
    """Samples for the convolutional model."""
    return [{"image": random(2, 3, 8, 8, seed=30 + i) * 3} for i in range(8)]


@pytest.fixture
def run():
    """The first output of a model on a sample."""

    def outputs(model, sample, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 1
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, sample)[0]

    return outputs


@pytest.fixture
def types():
    """The types of a model's nodes."""
    return lambda model: [node.op_type for node in model.graph.node]


@pytest.fixture(scope="session")
def digits():
    """A classifier trained on real digits: its model, and images with labels it has not seen."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels, labels = (data.data[order] / 16).astype(np.float32), data.target[order]
    net = MLPClassifier((48,), max_iter=25, random_state=0, learning_rate_init=0.01)
    with pytest.warns(ConvergenceWarning):  # it would like to train on
        net.fit(pixels[:1200], labels[:1200])
    nodes = [
        helper.make_node("Gemm", ["pixels", "w1", "b1"], ["a"], name="hidden"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["scores"], name="output"),
    ]
    weights = {"w1": net.coefs_[0], "b1": net.intercepts_[0], "w2": net.coefs_[1], "b2": net.intercepts_[1]}
    model = build(
        nodes, [("pixels", ["n", 64])], [("scores", ["n", 10])], {k: np.float32(v) for k, v in weights.items()}
    )
    return model, pixels[1200:], labels[1200:]


@pytest.fixture
def reader():
    """Makes a reader of samples."""
    return Reader


@pytest.fixture
def once():
    """Makes a reader that goes over samples once."""
    return OncePlease


@pytest.fixture
def make_model():
    """Builds a model from nodes, inputs, outputs and weights."""
    return build
