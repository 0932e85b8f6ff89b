"""What a logarithm reads stays in float, unless it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import BEFORE_LOGARITHM, before_logarithm
from neural_compressor.onnx.quantization import StaticQuantConfig, quantize
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader

FRAME, BINS = 64, 24


class Reader(CalibrationDataReader):
    """A few sounds, most of them quiet."""

    def __init__(self) -> None:
        self.rewind()

    def get_next(self) -> Any:
        return next(self.rest, None)

    def rewind(self) -> None:
        self.rest = iter([{"sound": sound(seed)} for seed in range(4)])


def sound(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    times = np.arange(16 * FRAME)
    loudness = np.repeat(10.0 ** rng.uniform(-3, 0, 16), FRAME)
    return (loudness * np.sin(times * rng.uniform(0.1, 3)))[None, None].astype(np.float32)


@pytest.fixture
def model(build):
    """Power in bands, filters on it, its logarithm, and a small network behind that."""
    waves = np.outer(np.arange(1, BINS + 1) * np.pi / BINS, np.arange(FRAME))
    rng = np.random.default_rng(0)
    constants = {
        "waves": np.concatenate([np.sin(waves), np.cos(waves)])[:, None],
        "filters": np.abs(rng.standard_normal((BINS, BINS, 1))) ** 4,
        "tiny": np.float32(1e-9),
        "w1": rng.standard_normal((32, BINS, 3)) * 0.1,
        "w2": rng.standard_normal((8, 32, 3)) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["sound", "waves"], ["bands"], name="transform", strides=[FRAME]),
        helper.make_node("Mul", ["bands", "bands"], ["squares"], name="square"),
        helper.make_node("Split", ["squares"], ["sines", "cosines"], name="split", axis=1),
        helper.make_node("Add", ["sines", "cosines"], ["power"], name="sum"),
        helper.make_node("Conv", ["power", "filters"], ["filtered"], name="filter"),
        helper.make_node("Add", ["filtered", "tiny"], ["positive"], name="offset"),
        helper.make_node("Log", ["positive"], ["decibels"], name="log"),
        helper.make_node("Conv", ["decibels", "w1"], ["h"], name="hidden", pads=[1, 1]),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="last", pads=[1, 1]),
    ]
    return build(nodes, {"sound": [1, 1, 16 * FRAME]}, {"y": [1, 8, 16]}, constants)


def test_the_nodes_of_a_spectrum(model) -> None:
    found = before_logarithm(normalise(ir.from_proto(model)))
    assert {name for name, _ in found} == {"transform", "square", "split", "sum", "filter", "offset"}


@pytest.mark.parametrize("before", ["Softmax", "Sigmoid", "Exp", "Relu", "Softplus"])
def test_a_logarithm_of_what_a_network_gives_is_another_matter(build, before: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node(before, ["h"], ["p"], name="positive"),
        helper.make_node("Mul", ["p", "p"], ["q"], name="square"),
        helper.make_node("Log", ["q"], ["y"], name="log"),
    ]
    model = build(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, {"w": np.eye(4)})
    assert ("product", "MatMul") not in before_logarithm(normalise(ir.from_proto(model)))


def test_without_a_power_it_is_no_spectrum(build) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Log", ["h"], ["y"], name="log"),
    ]
    model = build(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, {"w": np.eye(4)})
    assert not before_logarithm(normalise(ir.from_proto(model)))


def ratio(model, quantized) -> float:
    """What is left of the signal against the noise, in dB, on sounds that were not calibrated with."""
    both = [ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (model, quantized)]
    results = [[session.run(None, {"sound": sound(seed)})[0] for seed in range(10, 14)] for session in both]
    wanted, found = (np.stack(each) for each in results)
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)))


def test_quantize_keeps_them_in_float_unless_they_are_named(model) -> None:
    new = quantize(model, None, StaticQuantConfig(Reader()))
    named = quantize(model, None, StaticQuantConfig(Reader(), nodes_to_quantize=["transform", "filter"]))
    assert new is not None
    assert named is not None
    record = read_record(ir.from_proto(new))
    assert record is not None
    assert {record.reasons[name, "Conv"] for name in ("transform", "filter")} == {BEFORE_LOGARITHM}
    assert {node.op_type for node in named.graph.node if node.name in ("transform", "filter")} == {"QLinearConv"}
    # Where the filters give less than nothing in integers, the logarithm is none, and neither is the ratio.
    assert not ratio(model, named) > ratio(model, new) - 6


def test_the_adaptor_keeps_them_in_float_unless_they_are_named(model) -> None:
    capability = ONNXRTAdaptor({"dataloader": [{"sound": sound(0)}]}).query_fw_capability(model)
    for mode in ("static", "dynamic"):
        assert capability["in_float_unless_named"][mode]["transform", "Conv"] == BEFORE_LOGARITHM
