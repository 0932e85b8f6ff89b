"""Moments of tensors by channel, against the same computed from the whole tensors."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.graph.queries import Bounds
from neural_compressor.onnx.methods.static.calibration import FloatMoments, calibrate
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.schemes import TensorScheme

Kit = SimpleNamespace
COUNT = 3
NONE = (-np.inf, np.inf)


@pytest.fixture
def model(kit: Kit) -> ir.Model:
    net = kit.Net()
    y = net.op("Relu", net.conv("x", (3, 4)))
    made: ir.Model = net.model({"x": [2, 3, 8, 8]}, net.op("Tanh", net.conv(y, (4, 5))))
    return made


def find(model: ir.Model, op_type: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type)


@pytest.mark.parametrize(
    ("behind", "bounds", "clips"),
    [("Conv", NONE, 0), ("Conv", (-0.25, 0.5), 1), ("Relu", (0.0, np.inf), 0), ("Relu", (0.0, 0.5), 1)],
)
def test_mean_by_sample_and_variance_over_all(
    behind: str, bounds: Bounds, clips: int, kit: Kit, model: ir.Model
) -> None:
    value, feeds = find(model, behind).outputs[0], kit.feeds_of(model, COUNT + 2)
    moments = FloatMoments({find(model, "Conv"): (value, bounds)}, COUNT)
    assert sum(node.op_type == "Clip" for node in moments.nodes()) == clips
    nodes = list(model.graph)
    calibrate(model, {}, feeds, moments=moments)
    assert list(model.graph) == nodes
    model.graph.outputs.append(value)
    tensors = [np.clip(kit.run(model, feed)[1], *bounds) for feed in feeds[:COUNT]]
    means, variance = moments.by_node()[find(model, "Conv")]
    np.testing.assert_allclose(means, [tensor.mean(axis=(0, 2, 3)) for tensor in tensors], atol=1e-5)
    np.testing.assert_allclose(variance, np.var(tensors, axis=(0, 1, 3, 4)).sum(), rtol=1e-4)


def test_ranges_are_collected_in_the_same_pass_over_all_samples(kit: Kit, model: ir.Model) -> None:
    feeds = [{"x": scale * feed["x"]} for scale, feed in enumerate(kit.feeds_of(model, COUNT + 2), start=1)]
    wanted = {str(find(model, kind).outputs[0].name): TensorScheme(dtype("uint8")) for kind in ("Relu", "Tanh")}
    moments = FloatMoments({find(model, "Conv"): (find(model, "Relu").outputs[0], (0.0, np.inf))}, COUNT)
    samples = Samples(kit.Reader(feeds))
    assert not moments.is_taken
    assert calibrate(model, wanted, samples, moments=moments) == calibrate(model, wanted, feeds)
    assert samples.passes == 1
    assert len(moments.by_node()[find(model, "Conv")][0]) == COUNT


def test_where_ranges_are_known_a_pass_of_its_own_finds_the_same(kit: Kit, model: ir.Model) -> None:
    plan, samples = kit.plan_for(model), Samples(kit.Reader(kit.feeds_of(model, 6)))
    options, known = StaticOptions(bias_correction=True), {}
    first, second = (ir.to_proto(quantize_static(model, plan, samples, options, known)) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()
