"""How far the outputs of quantized ops are off."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.onnx.adaptor import op_records as module
from neural_compressor.onnx.adaptor.op_records import output_errors
from neural_compressor.onnx.graph.normalise import normalise

CPU = ("CPUExecutionProvider",)


@pytest.fixture
def chain(build):
    """``chain(noise)``: three products whose weights are off by some noise."""
    rng = np.random.default_rng(0)
    weights, noises = rng.normal(size=(3, 8, 8)), rng.normal(size=(3, 8, 8))

    def make(noise):
        nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"m{i}") for i in range(3)]
        constants = {f"w{i}": weights[i] + noise * noises[i] for i in range(3)}
        return normalise(ir.from_proto(build(nodes, {"v0": ["n", 8]}, {"v3": ["n", 8]}, constants)))

    return make


def by_hand(original, noisy, feed):
    x = y = feed
    errors = {}
    for i in range(3):
        x, y = (v @ m.graph.initializers[f"w{i}"].const_value.numpy() for v, m in ((x, original), (y, noisy)))
        errors[f"m{i}"] = np.sum((x - y) ** 2) / np.sum(x**2)
    return errors


@pytest.mark.parametrize("at_a_time", [1, 1 << 28])
def test_errors_are_those_of_the_outputs_whatever_fits_at_a_time(chain, monkeypatch, at_a_time):
    monkeypatch.setattr(module, "_AT_A_TIME", at_a_time)
    original, noisy = chain(0.0), chain(0.01)
    feed = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    feeds = [{"v0": feed[:2]}, {"v0": feed[2:]}]
    found = output_errors(noisy, original, {"m0", "m1", "m2"}, feeds, CPU)
    assert found == pytest.approx(by_hand(original, noisy, feed), rel=0.01)
    assert found["m0"] < found["m2"]  # what came in from before counts


def test_ops_that_are_not_asked_for_or_not_there_are_left_out(chain):
    feed = {"v0": np.ones((2, 8), np.float32)}
    assert set(output_errors(chain(0.1), chain(0.0), {"m1", "gone"}, [feed], CPU)) == {"m1"}
    assert output_errors(chain(0.1), chain(0.0), set(), [feed], CPU) == {}
