"""Models quantized for CUDA, run by it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from neural_compressor.onnx.quantization import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    convert_precision,
    quantize,
)
from neural_compressor.onnx.runtime.providers import CPU, CUDA, choose_target, provider_runs

pytestmark = pytest.mark.skipif(not provider_runs(CUDA.name), reason="ONNX Runtime runs no CUDA here")
IMAGES = np.random.default_rng(1).standard_normal((8, 3, 16, 16)).astype(np.float32)


class Reader:
    """The images, one at a time."""

    def __init__(self) -> None:
        self.rewind()

    def rewind(self) -> None:
        self._rest = iter(IMAGES)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self._rest, None)
        return None if image is None else {"x": image[None]}


@pytest.fixture
def model(build: Any) -> onnx.ModelProto:
    """Convolutions and products."""
    random = np.random.default_rng(0)
    constants = {
        "k1": random.standard_normal((32, 3, 3, 3)) * 0.2,
        "b1": random.standard_normal(32) * 0.2,
        "k2": random.standard_normal((64, 32, 3, 3)) * 0.06,
        "w1": random.standard_normal((64, 512)) * 0.1,
        "w2": random.standard_normal((512, 96)) * 0.04,
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["a"], name="conv1"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "k2"], ["c"], name="conv2"),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "w1"], ["g"], name="product1"),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["y"], name="product2"),
    ]
    return build(nodes, {"x": ["n", 3, 16, 16]}, {"y": ["n", 96]}, constants)


def outputs(model: onnx.ModelProto, provider: str, folder: Path) -> tuple[np.ndarray, Counter[tuple[str, str]]]:
    """What ``provider`` computes, and by whom which types of node are run."""
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider, CPU.name])
    assert session.get_providers()[0] == provider
    found = session.run(None, {"x": IMAGES})[0]
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"] for event in events if "provider" in event.get("args", {})]
    return found, Counter((args["op_name"], args["provider"]) for args in ran)


def decibels(expected: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10((expected**2).sum() / ((expected - found) ** 2).sum()))


def test_the_automatic_choice_is_a_gpu() -> None:
    assert choose_target().provider.device == "gpu"
    assert choose_target(device="cpu").provider is CPU


@pytest.mark.parametrize(
    ("config", "runs", "least"),
    [
        (StaticQuantConfig(Reader(), execution_provider=CUDA.name), "DequantizeLinear", 20),
        (SmoothQuantConfig(calibration_data_reader=Reader(), execution_provider=CUDA.name), "DequantizeLinear", 20),
        (RTNConfig(weight_bits=4, weight_group_size=32, providers=[CUDA.name]), "MatMulNBits", 15),
        (RTNConfig(weight_bits=8, weight_group_size=32, providers=[CUDA.name]), "MatMulNBits", 35),
        (HQQConfig(weight_group_size=32, providers=[CUDA.name]), "MatMulNBits", 15),
        (GPTQConfig(weight_group_size=32, calibration_data_reader=Reader(), providers=[CUDA.name]), "MatMulNBits", 20),
        (AWQConfig(weight_group_size=32, calibration_data_reader=Reader(), providers=[CUDA.name]), "MatMulNBits", 15),
    ],
    ids=lambda value: type(value).__name__,
)
def test_cuda_computes_what_the_cpu_does(
    model: onnx.ModelProto, tmp_path: Path, config: Any, runs: str, least: float
) -> None:
    new = quantize(model, None, config)
    assert new is not None
    onnx.checker.check_model(new, full_check=True)
    found, ran = outputs(new, CUDA.name, tmp_path)
    assert ran[runs, CUDA.name]
    biases = runs == "DequantizeLinear"  # in int32, for which CUDA has none
    assert ran[runs, CPU.name] == biases
    assert decibels(outputs(model, CPU.name, tmp_path)[0], found) > least
    assert decibels(outputs(new, CPU.name, tmp_path)[0], found) > least


@pytest.mark.parametrize(("dtype", "least"), [("fp16", 50), ("bf16", 35)])
def test_half_precision(model: onnx.ModelProto, tmp_path: Path, dtype: str, least: float) -> None:
    new = convert_precision(model, dtype=dtype, execution_provider=CUDA.name)
    assert new is not None
    found, ran = outputs(new, CUDA.name, tmp_path)
    assert {provider for (kind, provider) in ran if kind in ("Conv", "FusedConv", "MatMul")} == {CUDA.name}
    assert decibels(outputs(model, CPU.name, tmp_path)[0], found) > least
