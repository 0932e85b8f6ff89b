"""Rounding to nearest: plain, searched, and with the whole of a signed range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import rtn, weight_qparams
from neural_compressor.algorithms.rtn import round_with
from neural_compressor.algorithms.weight_qparams import has_full_range
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerChannel, PerGroup, TensorScheme, quantize

SCHEMES = [
    TensorScheme(dtype(name), symmetric, part)
    for name, symmetric in (
        ("int4", True),
        ("int4", False),
        ("uint4", True),
        ("uint2", False),
        ("int8", True),
        ("nf4", True),
        ("fp4_e2m1_bnb", True),
        ("fp8_e5m2", True),
        ("mxfp4", True),
        ("mxint8", True),
        ("nvfp4", True),
    )
    for part in (PerGroup(20), PER_CHANNEL, PER_TENSOR)
]


def ids(scheme: TensorScheme) -> str:
    return f"{scheme.dtype.name}-{'sym' if scheme.symmetric else 'asym'}-{scheme.granularity.name}"


def by_scale(scheme: TensorScheme, error: Any, power: int = 2) -> Any:
    """Sums of powers over what shares a scale, by a plain loop."""
    powers = np.abs(error.astype(np.float64)) ** power
    size = getattr(scheme.dtype, "block", None) or getattr(scheme.granularity, "size", None)
    if size:
        return np.stack([powers[:, i : i + size].sum(1) for i in range(0, error.shape[1], size)], axis=1)
    return powers.sum() if scheme.granularity == PER_TENSOR else powers.sum(1)


@pytest.mark.parametrize("scheme", SCHEMES, ids=ids)
def test_it_is_what_quantizing_gives_however_many_rows_there_are(scheme: TensorScheme) -> None:
    weight = np.random.default_rng(0).standard_normal((1500, 1000)).astype(np.float32)
    even = {"full_range": False} if has_full_range(scheme) else {}
    found, expected = rtn(weight, scheme, **even), quantize(weight, scheme)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.dequantize(), expected.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES, ids=ids)
def test_a_search_makes_no_part_worse_and_the_whole_better(scheme: TensorScheme, weight: Any) -> None:
    alike = np.ones(96, np.float32)
    plain = by_scale(scheme, rtn(weight, scheme).dequantize() - weight)
    searched = by_scale(scheme, rtn(weight, scheme, alike, "mse").dequantize() - weight)
    assert np.all(searched <= plain * (1 + 1e-5))
    if scheme.dtype.bits <= 4:
        assert searched.sum() < 0.99 * plain.sum()


@pytest.mark.parametrize("scheme", SCHEMES, ids=ids)
def test_without_importances_no_large_error_is_taken_for_many_small_ones(scheme: TensorScheme, weight: Any) -> None:
    if scheme.dtype.scale_type is not None:
        pytest.skip("blocks are too small for a few large errors to hide in, and are searched by squares")
    plain = by_scale(scheme, rtn(weight, scheme).dequantize() - weight, 4)
    searched = round_with(weight, scheme, weight_qparams(weight, scheme, search="mse"))
    alike = rtn(weight, scheme, np.ones(96, np.float32), "mse")
    fourth = by_scale(scheme, searched.dequantize() - weight, 4)
    assert np.all(fourth <= plain * (1 + 1e-5))
    assert fourth.sum() <= by_scale(scheme, alike.dequantize() - weight, 4).sum()


@pytest.mark.parametrize("scheme", SCHEMES, ids=ids)
def test_a_search_weighs_inputs_with_their_importance(scheme: TensorScheme, weight: Any) -> None:
    importance = np.exp(np.random.default_rng(1).standard_normal(96) * 2).astype(np.float32)
    alike = np.ones(96, np.float32)
    blind = by_scale(scheme, (rtn(weight, scheme, alike, "mse").dequantize() - weight) * np.sqrt(importance))
    seeing = by_scale(scheme, (rtn(weight, scheme, importance, "mse").dequantize() - weight) * np.sqrt(importance))
    # One scale for all leaves little to choose from, and the steps of the search are wider than that.
    slack = 1.02 if scheme.granularity == PER_TENSOR else 1.0
    assert seeing.sum() <= blind.sum() * slack


def test_a_search_comes_close_to_the_best_scale_there_is(weight: Any) -> None:
    scheme = TensorScheme(dtype("int3"), True, PER_CHANNEL)
    found = by_scale(scheme, rtn(weight, scheme, np.ones(96, np.float32), "mse").dequantize() - weight)
    scales = np.abs(weight).max(1)[None, :, None] / 3 * np.linspace(0.2, 1.0, 2000)[:, None, None]
    errors = (np.clip(np.round(weight / scales), -4, 3) * scales - weight) ** 2
    assert np.all(found <= errors.sum(-1).min(0) * 1.03)


def test_the_whole_range_gives_the_larger_side_the_extra_code() -> None:
    scheme = TensorScheme(dtype("int3"), True, PerGroup(3))
    weight = np.float32([[4.0, -1.0, 0.0, -4.0, 2.0, 1.0, 0.0, 0.0, 0.0]])
    found = rtn(weight, scheme)
    assert found.scale.tolist() == [[-1.0, 1.0, 1.0]]
    assert found.codes.tolist() == [[-4, 1, 0, -4, 2, 1, 0, 0, 0]]
    np.testing.assert_array_equal(found.dequantize(), weight)
    np.testing.assert_array_equal(found.pack().unpack().dequantize(), weight)


@pytest.mark.parametrize("name", ["int1", "int2", "int4"])
def test_the_whole_range_is_more_precise(name: str, weight: Any) -> None:
    scheme = TensorScheme(dtype(name), True, PerGroup(32))

    def error(**options: Any) -> float:
        return float(((rtn(weight, scheme, **options).dequantize() - weight) ** 2).sum())

    assert error() == error(full_range=True) < error(full_range=False)
    alike = {"search": "mse", "importance": np.ones(96, np.float32)}
    assert error(**alike) < error(full_range=False, **alike)
    assert error(**alike) < error()


def test_a_ratio_shrinks_the_range(weight: Any) -> None:
    for symmetric in (True, False):
        scheme = TensorScheme(dtype("int4"), symmetric, PerGroup(32))
        whole, less = rtn(weight, scheme), rtn(weight, scheme, ratio=0.5)
        np.testing.assert_allclose(less.scale, whole.scale * 0.5, rtol=1e-6)
        assert np.abs(less.dequantize()).max() < 0.6 * np.abs(weight).max()


def test_torch_gives_the_same_bits_as_numpy(weight: Any) -> None:
    torch = pytest.importorskip("torch")
    for scheme in SCHEMES:
        ours, theirs = rtn(weight, scheme, search="mse"), rtn(torch.from_numpy(weight), scheme, search="mse")
        assert np.mean(ours.codes != theirs.codes.numpy()) < 0.001, scheme


def test_bad_input_is_refused(weight: Any) -> None:
    scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    with pytest.raises(ConfigError, match="unknown search 'best'"):
        rtn(weight, scheme, search="best")
    for other in (TensorScheme(dtype("int4"), False), TensorScheme(dtype("uint4")), TensorScheme(dtype("nf4"))):
        with pytest.raises(ConfigError, match="full_range is for symmetric signed"):
            rtn(weight, other, full_range=True)
    with pytest.raises(ConfigError, match="axis 0"):
        rtn(weight, TensorScheme(dtype("int4"), True, PerChannel(1)))
    with pytest.raises(QuantizationError, match="96 importances"):
        rtn(weight, scheme, np.ones(95, np.float32), "mse")
    with pytest.raises(QuantizationError, match="cannot be negative"):
        rtn(weight, scheme, -np.ones(96, np.float32), "mse")
    with pytest.raises(QuantizationError, match="NaN or Inf"):
        rtn(weight, scheme, np.full(96, np.nan, np.float32), "mse")
