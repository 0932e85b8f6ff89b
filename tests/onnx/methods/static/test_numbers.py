"""Scales, zero points and codes against numbers worked out by hand."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.graph.integer_tensors import (
    activation_params,
    bias_codes,
    least_weight_scale,
    weight_params,
)
from neural_compressor.onnx.graph.queries import constant
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.schemes import PER_CHANNEL, Plan, TensorScheme

Kit = SimpleNamespace


def constants_of(value: ir.Value) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Scale, zero point and stored codes of a dequantized value."""
    codes, scale, zero_point = (None if each is None else constant(each) for each in value.producer().inputs)
    return scale, zero_point, codes


# The formulas of the scheme: symmetric 2 * max(|a|, |b|) / (255 - 1) for int8 and / 255 for uint8; asymmetric
# (b - a) / 255 with zero point round(qmin - a / scale), the range widened to hold zero.
ACTIVATIONS = [
    # type, symmetric, range -> scale, zero point
    ("int8", True, (-2.54, 1.0), 2 * 2.54 / 254, 0),
    ("int8", True, (0.0, 1.27), 2 * 1.27 / 254, 0),
    ("uint8", True, (-2.55, 1.0), 2 * 2.55 / 255, 128),
    ("uint8", True, (0.0, 2.55), 2.55 / 255, 0),
    ("int8", False, (-1.0, 1.55), 2.55 / 255, -28),  # -128 + 100
    ("int8", False, (0.0, 2.55), 2.55 / 255, -128),
    ("uint8", False, (-1.0, 1.55), 2.55 / 255, 100),
    ("uint8", False, (1.0, 2.55), 2.55 / 255, 0),  # zero is in the range
    ("uint8", False, (-2.55, -1.0), 2.55 / 255, 255),
    ("int16", True, (-3.2767, 1.0), 2 * 3.2767 / 65534, 0),
    ("uint16", False, (-1.0, 5.5535), 6.5535 / 65535, 10000),
    ("int16", False, (-1.0, 5.5535), 6.5535 / 65535, -22768),
]


@pytest.mark.parametrize(("kind", "symmetric", "seen", "scale", "zero_point"), ACTIVATIONS)
def test_activations(kind: str, symmetric: bool, seen: tuple[float, float], scale: float, zero_point: int) -> None:
    params = activation_params(*seen, TensorScheme(dtype(kind), symmetric))
    assert float(params.scale) == pytest.approx(scale, rel=1e-6)
    assert int(params.zero_point) == zero_point
    assert params.zero_point.dtype == np.dtype(kind)


@pytest.mark.parametrize(
    ("kind", "scale", "zero_point"),
    [("int8", 1.28 / 64, 0), ("uint8", 1.27 / 127, 0)],  # -64..64 and 0..127
)
def test_reduced_ranges(kind: str, scale: float, zero_point: int) -> None:
    high = 1.28 if kind == "int8" else 1.27
    params = activation_params(0.0, high, TensorScheme(dtype(kind), symmetric=kind == "int8", reduce_range=True))
    assert float(params.scale) == pytest.approx(scale, rel=1e-6)
    assert int(params.zero_point) == zero_point


def test_weights_a_channel() -> None:
    weight = np.float32([[1.27, -0.5], [-2.54, 0.1], [0.0, 0.0]])
    params = weight_params(weight, TensorScheme(dtype("int8"), granularity=PER_CHANNEL), axis=0)
    np.testing.assert_allclose(params.scale, [0.01, 0.02, 1.0], rtol=1e-6)
    assert params.zero_point.tolist() == [0, 0, 0]
    assert params.codes(weight).tolist() == [[127, -50], [-127, 5], [0, 0]]
    other = weight_params(weight, TensorScheme(dtype("uint8"), symmetric=False), axis=0)
    assert float(other.scale) == pytest.approx((1.27 + 2.54) / 255)
    assert int(other.zero_point) == 170


def test_four_bits() -> None:
    weight = np.float32([0.7, -0.3, 0.12])
    params = weight_params(weight, TensorScheme(dtype("int4")), axis=None)
    assert float(params.scale) == pytest.approx(2 * 0.7 / 14)
    assert params.codes(weight).astype(int).tolist() == [7, -3, 1]


def test_a_written_model_holds_these_numbers(kit: Kit) -> None:
    net = kit.Net()
    weight = net.constant([[1.27, -0.5], [-2.54, 0.1]])
    model = net.model({"x": [1, 2]}, net.op("Gemm", "x", weight, net.constant([0.3, -0.2])))
    seen = [{"x": np.float32([[-1.0, 1.0]])}, {"x": np.float32([[0.0, 1.55]])}]
    quantized = quantize_static(model, kit.plan_for(model), Samples(kit.Reader(seen)))
    x, w, b = quantized.graph.node("Gemm_1").inputs
    scale, zero_point, codes = constants_of(x)
    assert float(scale) == pytest.approx(0.01)
    assert (int(zero_point), codes) == (100, None)
    scale, zero_point, codes = constants_of(w)
    np.testing.assert_allclose(scale, [0.02, 0.5 / 127], rtol=1e-6)
    # -0.2 * ... : columns are the channels of a Gemm that does not transpose.
    assert codes.tolist() == [[64, -127], [-127, 25]]
    assert zero_point.tolist() == [0, 0]
    scale, zero_point, codes = constants_of(b)
    np.testing.assert_allclose(scale, [0.01 * 0.02, 0.01 * 0.5 / 127], rtol=1e-6)
    assert codes.tolist() == [1500, -5080]
    assert codes.dtype == np.int32
    assert zero_point is None, "zero is what counts where nothing is said"


def test_a_bias_that_would_not_fit_widens_the_scale_of_its_weight() -> None:
    bias, weight = np.float32([10.0, 1.0]), np.float32([[1e-9], [1.0]])
    input_scale = np.float32(0.01)
    least = least_weight_scale(bias, input_scale)
    params = weight_params(weight, TensorScheme(dtype("int8"), granularity=PER_CHANNEL), 0, least)
    scale = input_scale * params.scale
    codes = bias_codes(bias, scale)
    assert codes is not None
    np.testing.assert_allclose(codes * scale, bias, rtol=1e-6)
    assert params.scale[1] == pytest.approx(1 / 127)
    plain = weight_params(weight, TensorScheme(dtype("int8"), granularity=PER_CHANNEL), 0)
    assert bias_codes(bias, input_scale * plain.scale) is None


def test_a_large_bias_on_a_tiny_weight_survives(kit: Kit) -> None:
    net = kit.Net()
    weight = net.constant(np.full((2, 3, 1, 1), 1e-9))
    model = net.model({"x": [1, 3, 4, 4]}, net.op("Conv", "x", weight, net.constant([5.0, -7.0])))
    kit.check_close(model, kit.quantize(model), tolerance=0.01)


def test_only_what_readers_tell_apart_has_integers(kit: Kit) -> None:
    """Below -3 a hard swish is zero, whatever it is given."""
    net = kit.Net()
    a = net.conv("x", (3, 4), bias=False)
    gate = net.op("HardSigmoid", a, alpha=1 / 6, beta=0.5)
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Mul", a, gate), (4, 4)))
    feed = {"x": np.random.default_rng(0).normal(scale=20, size=(1, 3, 6, 6)).astype(np.float32)}
    plan = Plan({key: scheme for key, scheme in kit.plan_for(model).items() if key[1] == "Conv"})
    quantized = quantize_static(model, plan, Samples(kit.Reader([feed])))
    swish = next(node for node in quantized.graph if node.op_type == "HardSwish")
    scale, zero_point, _ = constants_of(swish.inputs[0])
    assert -3.0 - scale / 2 <= -int(zero_point) * float(scale) <= -3.0 + scale / 2
