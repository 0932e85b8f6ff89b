"""Weights that a model lists as inputs: what was not quantized can still be given from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    convert_precision,
    quantize,
)
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader

WIDTH = 64
RANDOM = np.random.default_rng(0)
SHAPES = {"w": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "c": (WIDTH,)}
WEIGHTS = {name: (RANDOM.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in SHAPES.items()}
X = RANDOM.standard_normal((3, WIDTH)).astype(np.float32)


class Reader(CalibrationDataReader):
    """One sample."""

    def __init__(self) -> None:
        self.rewind()

    def get_next(self) -> Any:
        return next(self.rest, None)

    def rewind(self) -> None:
        self.rest = iter([{"x": X}])


def model(ir_version: int) -> onnx.ModelProto:
    """``y = sin((x w) v) + c``, with all of its weights listed as inputs."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="second"),
        helper.make_node("Sin", ["b"], ["s"], name="sin"),
        helper.make_node("Add", ["s", "c"], ["y"], name="add"),
    ]
    shapes = {"x": ("n", WIDTH), **SHAPES}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def run(made: onnx.ModelProto, **feed: np.ndarray) -> Any:
    return ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]


def inputs(made: onnx.ModelProto) -> list[str]:
    return [value.name for value in made.graph.input]


CONFIGS = {
    "rtn": lambda **more: RTNConfig(weight_bits=8, **more),
    "dynamic": DynamicQuantConfig,
    "static": lambda **more: StaticQuantConfig(Reader(), op_types_to_quantize=["MatMul"], **more),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_what_is_not_quantized_stays_an_input(config: str) -> None:
    made = quantize(model(8), None, CONFIGS[config]())
    assert made is not None
    onnx.checker.check_model(made, full_check=True)
    assert inputs(made) == ["x", "c"]
    np.testing.assert_allclose(run(made, x=X, c=WEIGHTS["c"] + 1), run(made, x=X) + 1, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_weight_of_a_node_in_float_stays_an_input(config: str) -> None:
    made = quantize(model(8), None, CONFIGS[config](nodes_to_exclude=["second"]))
    assert made is not None
    onnx.checker.check_model(made, full_check=True)
    assert inputs(made) == ["x", "v", "c"]
    other = run(made, x=X, v=np.zeros_like(WEIGHTS["v"]))
    np.testing.assert_allclose(other, np.broadcast_to(WEIGHTS["c"], other.shape), atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS)
def test_in_old_models_being_listed_means_nothing(config: str) -> None:
    """IR 3 lists every initializer, and no runtime lets them be given: the result lists none, and is valid."""
    made = quantize(model(3), None, CONFIGS[config]())
    assert made is not None
    onnx.checker.check_model(made, full_check=True)
    assert made.ir_version >= 4
    assert inputs(made) == ["x"]


@pytest.mark.parametrize("ir_version", [3, 8])
def test_precision(ir_version: int) -> None:
    made = convert_precision(model(ir_version), None, "fp16", nodes_to_exclude=["add", "sin"])
    assert made is not None
    onnx.checker.check_model(made, full_check=True)
    assert inputs(made) == (["x"] if ir_version == 3 else ["x", "c"])


def test_nothing_of_it_is_left_in_the_metadata() -> None:
    made = quantize(model(8), None, RTNConfig(weight_bits=8))
    assert made is not None
    assert not [entry.key for entry in made.metadata_props if "overridable" in entry.key]
