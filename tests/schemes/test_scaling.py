"""Scales with headroom, rounded up to powers of two or to those of a device, or searched: against loops over all of them."""

import math

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpScheme, PerChannel, Scaling, TensorScheme, fake_quantize, quantize
from neural_compressor.schemes.quantize import qparams_of
from neural_compressor.schemes.scaling import DEVICE_SCALES

E4M3, E5M2 = dtype("fp8_e4m3"), dtype("fp8_e5m2")
MAGNITUDES = np.float32([1e-30, 1e-3, 0.4375, 0.5, 1.0, 1.75, 7.0, 239.0, 448.0, 449.0, 1e4, 3e38])


def by_hand(magnitude, kind, rounding, backoff):
    full = 240.0 if rounding == "gaudi2" and kind is E4M3 else kind.max
    scale = float(magnitude) / (full * backoff)
    if rounding == "none":
        return scale
    if rounding == "pow2":
        power = 2.0 ** math.floor(math.log2(scale))
        return power if power == scale else power * 2
    admitted = [s for s in DEVICE_SCALES[rounding].scales if s >= scale]
    return min(admitted) if admitted else max(DEVICE_SCALES[rounding].scales)


@pytest.mark.parametrize("as_array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("backoff", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("rounding", ["none", "pow2", "gaudi2", "gaudi3"])
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=lambda kind: kind.name)
def test_the_scale_is_that_of_the_formula(kind, rounding, backoff, as_array):
    found = Scaling("maxabs", rounding, backoff).scale(as_array(MAGNITUDES), kind)
    expected = [by_hand(m, kind, rounding, backoff) for m in MAGNITUDES]
    np.testing.assert_allclose(np.asarray(found), np.float32(expected), rtol=1e-6)
    one = Scaling("maxabs", rounding, backoff).scale(as_array(np.float32(7.0)), kind)
    assert one.shape == ()


def test_device_scales_are_those_documented():
    assert DEVICE_SCALES["gaudi2"].scales == (2.0**-8, 2.0**-4, 1.0, 2.0**4)
    assert (DEVICE_SCALES["gaudi3"].scales[0], DEVICE_SCALES["gaudi3"].scales[-1]) == (2.0**-55, 2.0**7)
    assert len(DEVICE_SCALES["gaudi3"].scales) == 63


@pytest.mark.parametrize("rounding", ["none", "pow2", "gaudi2", "gaudi3"])
def test_a_unit_scale_is_one_and_so_is_that_of_zeros(rounding):
    assert Scaling("unit", rounding).scale(MAGNITUDES, E4M3).tolist() == [1.0] * len(MAGNITUDES)
    assert float(Scaling("maxabs", rounding).scale(np.float32(0.0), E4M3)) == 1.0


@pytest.mark.parametrize("as_array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("rounding", ["pow2", "gaudi2", "gaudi3"])
@pytest.mark.parametrize("granularity", [PerChannel(0), None])
def test_the_search_finds_the_best_of_all_scales(as_array, rounding, granularity):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6, 64)) * 10.0 ** rng.integers(-4, 4, (6, 1))).astype(np.float32)
    more = {} if granularity is None else {"granularity": granularity}
    scheme = TensorScheme(E4M3, scaling=Scaling("opt", rounding, 0.5), **more)
    found = np.asarray(qparams_of(as_array(x), scheme).scale).reshape(-1)
    every = [2.0**e for e in range(-60, 20)] if rounding == "pow2" else DEVICE_SCALES[rounding].scales

    def error(part, scale):
        plain = TensorScheme(E4M3, scaling=Scaling("unit"))
        return float(((fake_quantize(part / np.float32(scale), plain) * np.float32(scale) - part) ** 2).sum())

    for part, scale in zip(x if granularity else [x], found, strict=True):
        assert error(part, scale) <= min(error(part, s) for s in every) * (1 + 1e-5)


def test_a_searched_scale_of_any_size_is_no_worse_than_the_plain_one():
    x = np.random.default_rng(1).standard_normal((4, 128)).astype(np.float32)
    x[0, 0] = 900
    plain, searched = (TensorScheme(E4M3, scaling=Scaling(value)) for value in ("maxabs", "opt"))
    errors = [((quantize(x, scheme).dequantize() - x) ** 2).sum() for scheme in (plain, searched)]
    assert errors[1] <= errors[0]


def test_it_is_plain_data():
    scaling = Scaling("opt", "gaudi3", 0.5)
    scheme = TensorScheme(E4M3, scaling=scaling)
    op = OpScheme(scheme, TensorScheme(E4M3, scaling=Scaling("maxabs", "pow2", 0.25)), "static")
    assert OpScheme.from_dict(op.to_dict()) == op
    assert scheme.to_dict()["scaling"] == {"value": "opt", "rounding": "gaudi3", "backoff": 0.5}
    for wrong in ({"value": "max"}, {"rounding": "pow3"}, {"backoff": 0}, {"backoff": 2}, {"more": 1}, "opt"):
        with pytest.raises(ConfigError):
            Scaling.from_dict(wrong)
    with pytest.raises(ConfigError, match="int8 has scales of its own kind"):
        TensorScheme(dtype("int8"), scaling=scaling)
