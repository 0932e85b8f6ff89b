"""The entropy search: what it clips, and what it keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.observers import KLObserver
from neural_compressor.observers.kl import clipping_loss
from neural_compressor.schemes import PerChannel, TensorScheme, choose_qparams, fake_quantize


@pytest.mark.parametrize("name", ["int8", "uint8", "int4"])
def test_no_threshold_of_a_fine_search_is_much_better(name: str) -> None:
    observer = KLObserver()
    x = np.random.default_rng(6).laplace(size=20_000).astype(np.float32)
    observer.update(x)
    scheme = TensorScheme(dtype(name))
    seen = observer.seen()
    low, high = (np.atleast_1d(side).astype(np.float64) for side in observer.range(scheme))
    loss = clipping_loss(seen, scheme)
    found = loss(low, high)[0]
    fine = [loss(*np.clip([[-t], [t]], seen.low, seen.high))[0] for t in np.linspace(0.05, 1, 60) * np.abs(x).max()]
    assert found <= min(fine) + 0.05 * abs(min(fine)) + 1e-3


def test_outliers_are_clipped() -> None:
    x = np.random.default_rng(7).standard_normal(50_000).astype(np.float32)
    x[:5] = 60.0
    observer = KLObserver()
    observer.update(x)
    low, high = observer.range(TensorScheme(dtype("int8")))
    assert low >= x.min()
    assert 2 < high < 30


def test_a_heap_of_zeros_does_not_narrow_the_range() -> None:
    x = np.maximum(np.random.default_rng(8).standard_normal(20_000), 0).astype(np.float32)
    dense, sparse = KLObserver(), KLObserver()
    dense.update(x[x > 0])
    sparse.update(x)
    scheme = TensorScheme(dtype("uint8"), symmetric=False)
    assert sparse.range(scheme)[1] == pytest.approx(float(dense.range(scheme)[1]), rel=0.1)


def test_more_levels_than_bins_clip_nothing() -> None:
    x = np.random.default_rng(9).standard_normal(3000).astype(np.float32)
    observer = KLObserver()
    observer.update(x)
    assert observer.range(TensorScheme(dtype("int16"))) == (x.min(), x.max())


def test_channels_are_searched_apart() -> None:
    x = np.random.default_rng(10).laplace(size=(3000, 3)).astype(np.float32) * np.float32([1, 64, 0.25])
    scheme = TensorScheme(dtype("int4"), True, PerChannel(1), "kl")
    together = KLObserver(axis=1)
    together.update(x)
    low, high = together.range(scheme)
    for channel in range(3):
        alone = KLObserver(axis=1)
        alone.update(x[:, channel : channel + 1])
        assert alone.range(scheme) == (low[channel], high[channel])


def test_thresholds_that_say_nothing_are_not_taken() -> None:
    observer = KLObserver()
    observer.update(np.random.default_rng(5).standard_normal(3000).astype(np.float32))
    seen, scheme = observer.seen(), TensorScheme(dtype("int4"))
    loss, narrow, half = clipping_loss(seen, scheme), 4 * seen.width, np.asarray([0.5])
    assert loss(-narrow, narrow) == math.inf
    assert loss(-half, half) == math.inf
    assert loss(seen.low, seen.high) < math.inf


def decibels(x: np.ndarray, low: np.ndarray, high: np.ndarray, scheme: TensorScheme) -> float:
    """The signal over the error of quantizing ``x`` over ``[low, high]``."""
    error = fake_quantize(x, scheme, choose_qparams(low, high, scheme)) - x
    return float(10 * np.log10(np.sum(np.square(x, dtype=np.float64)) / np.sum(np.square(error, dtype=np.float64))))


def hard_swish(seed: int) -> np.ndarray:
    """What hard swish gives where most of what it reads is below zero: a heap of small values, a few large ones."""
    x = np.random.default_rng(seed).laplace(-1.5, 0.9, size=60_000)
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1), dtype=np.float32)


@pytest.mark.parametrize("name", ["uint8", "uint4"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_few_large_values_of_a_peaked_distribution_are_kept(name: str, seed: int) -> None:
    x, scheme = hard_swish(seed), TensorScheme(dtype(name), symmetric=False)
    observer = KLObserver()
    observer.update(x)
    usual = x[x < np.quantile(x, 0.9998)]
    assert decibels(usual, *observer.range(scheme), scheme) > decibels(usual, x.min(), x.max(), scheme) - 1


def test_one_end_far_out_is_clipped_for_the_sake_of_the_rest() -> None:
    """The bulk of values gains what an outlier on one side cost it."""
    x = np.random.default_rng(4).standard_normal(50_000).astype(np.float32)
    bulk, x[0] = x[1:].copy(), 400.0
    scheme, observer = TensorScheme(dtype("uint8"), symmetric=False), KLObserver()
    observer.update(x)
    assert decibels(bulk, *observer.range(scheme), scheme) > decibels(bulk, x.min(), x.max(), scheme) + 20
