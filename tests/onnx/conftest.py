"""Small ONNX models, and a classifier of handwritten digits."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from neural_compressor.kernel_race import Race, Work
from neural_compressor.kernel_timings import KernelTimings

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


class Told(Race):
    """A race that says what it was told to, of the ops that a key speaks of."""

    def __init__(self, faster_in_float: Callable[[str], bool]) -> None:
        super().__init__(KernelTimings(None))
        self.faster_in_float = faster_in_float
        self.asked: list[str] = []

    def microseconds(self, makers: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        (in_float, in_integers) = makers
        self.asked.append(in_float.removeprefix("float: "))
        return {in_float: 1.0, in_integers: 2.0 if self.faster_in_float(in_float) else 0.5}


@pytest.fixture(scope="session")
def told() -> type[Told]:
    """``told(faster_in_float)``: a race that measures nothing."""
    return Told


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
