"""Small ONNX models, and a classifier of handwritten digits."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

Build = Callable[..., onnx.ModelProto]


def _build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(a, dtype=np.float32), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="session")
def build() -> Build:
    """``build(nodes, inputs, outputs, constants)``: a model of float32 values."""
    return _build


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images of digits as vectors of 64 numbers up to 1, and what they show."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


@pytest.fixture(scope="session")
def digits_model(build: Build, digits: tuple[np.ndarray, np.ndarray]) -> onnx.ModelProto:
    """A classifier of digits with two layers, called ``hidden`` and ``scores``."""
    network = pytest.importorskip("sklearn.neural_network")
    images, labels = digits
    trained = network.MLPClassifier((32,), random_state=0, max_iter=40, learning_rate_init=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like to train for longer
        trained.fit(images[:1000], labels[:1000])
    (w1, w2), (b1, b2) = trained.coefs_, trained.intercepts_
    # A unit that is always 1 has the second bias as its weights.
    w1, b1, w2 = np.pad(w1, ((0, 0), (0, 1))), np.append(b1, 1), np.vstack([w2, b2])
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="hidden"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="scores"),
    ]
    return build(nodes, {"x": ["n", 64]}, {"y": ["n", 10]}, {"w1": w1, "b1": b1, "w2": w2})
