"""HQQ: against the plain loop of the paper, and laws of a half-quadratic fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import FloatZeroArray, hqq, rtn
from neural_compressor.algorithms.rtn import round_with
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, QParams, QuantizedArray, TensorScheme

SCHEME = TensorScheme(dtype("uint3"), False, PerGroup(32))


def paper(group: Any, bits: int, p: float = 0.7, iterations: int = 20) -> Any:
    """The best values of one group of weights, by the paper's loop with errors in steps.

    Not the paper's: what makes the fourth power of the error larger than at the start is passed over.
    """
    top = 2**bits - 1
    low, high = min(group.min(), 0.0), max(group.max(), 0.0)
    scale = (high - low) / top
    steps, zero, beta = group.astype(np.float64) / scale, round(-low / scale), 10.0
    best, kept, allowed = np.inf, None, np.inf
    for i in range(iterations):
        codes = np.clip(np.round(steps + zero), 0, top)
        error = steps - (codes - zero)
        allowed = (error**4).sum() if i == 0 else allowed
        if (np.abs(error) ** p).sum() < best and (error**4).sum() <= allowed:
            best, kept = (np.abs(error) ** p).sum(), (codes - zero) * scale
        sparse = np.sign(error) * np.maximum(np.abs(error) - np.maximum(np.abs(error), 1e-8) ** (p - 1) / beta, 0)
        zero = (codes - (steps - sparse)).mean()
        beta *= 1.01
    return kept


def lp(weight: Any, array: Any, p: float = 0.7) -> Any:
    """The error it makes small, for each group of 32."""
    error = np.abs(array.dequantize() - weight) ** p
    return error.reshape(weight.shape[0], -1, 32).sum(-1)


def test_zero_points_are_those_of_the_paper(weight: Any) -> None:
    found = hqq(weight[:6], SCHEME, optimize_scale=False).dequantize()
    for row in range(6):
        for start in range(0, 96, 32):
            part = slice(start, start + 32)
            np.testing.assert_allclose(found[row, part], paper(weight[row, part], 3), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("integer_zero", [False, True])
@pytest.mark.parametrize("optimize_scale", [False, True])
def test_no_group_gets_worse_than_rounding(integer_zero: bool, optimize_scale: bool, weight: Any) -> None:
    found = hqq(weight, SCHEME, integer_zero=integer_zero, optimize_scale=optimize_scale)
    plain = lp(weight, rtn(weight, SCHEME))
    assert np.all(lp(weight, found) <= plain * (1 + 1e-4))
    if optimize_scale or not integer_zero:
        assert lp(weight, found).sum() < 0.97 * plain.sum()


def test_scales_and_zero_points_together_do_better(weight: Any) -> None:
    assert lp(weight, hqq(weight, SCHEME)).sum() < lp(weight, hqq(weight, SCHEME, optimize_scale=False)).sum()


def test_an_integer_zero_point_gives_a_plain_quantized_array(weight: Any) -> None:
    found, floating = hqq(weight, SCHEME, integer_zero=True), hqq(weight, SCHEME)
    assert isinstance(found, QuantizedArray)
    assert found.zero_point.dtype == np.int32
    np.testing.assert_array_equal(found.pack().unpack().dequantize(), found.dequantize())
    assert isinstance(floating, FloatZeroArray)
    assert floating.nbytes_packed == 48 * 36 + 48 * 3 * 8


def test_with_integer_zero_points_it_comes_close_to_the_best_there_is(weight: Any) -> None:
    found, plain = hqq(weight, SCHEME, integer_zero=True), rtn(weight, SCHEME)
    best, largest = np.full(plain.scale.shape, np.inf), lp(weight, plain, 4) * (1 + 1e-4)
    for factor in np.linspace(0.7, 1.1, 41):
        for zero in range(8):
            scale, zeros = plain.scale * np.float32(factor), np.full_like(plain.zero_point, zero)
            rounded = round_with(weight, SCHEME, QParams(scale, zeros))
            best = np.where(lp(weight, rounded, 4) <= largest, np.minimum(best, lp(weight, rounded)), best)
    assert lp(weight, found).sum() < 1.005 * best.sum()


@pytest.mark.parametrize("part", [PerGroup(40), PerGroup(1000), PER_CHANNEL], ids=str)
def test_what_fills_up_a_short_group_does_not_count(part: Any, weight: Any) -> None:
    size = min(getattr(part, "size", 96), 96)
    found = hqq(weight, TensorScheme(dtype("uint3"), False, part)).dequantize()
    for start in range(0, 96, size):
        piece = np.ascontiguousarray(weight[:, start : start + size])
        alone = hqq(piece, TensorScheme(dtype("uint3"), False, PER_CHANNEL)).dequantize()
        np.testing.assert_allclose(found[:, start : start + size], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [2.0**-12, 2.0**12])
def test_the_size_of_the_weights_does_not_matter(factor: float, weight: Any) -> None:
    found, scaled = hqq(weight, SCHEME), hqq(weight * np.float32(factor), SCHEME)
    np.testing.assert_array_equal(found.codes, scaled.codes)
    np.testing.assert_allclose(scaled.dequantize(), found.dequantize() * factor, rtol=1e-5)
