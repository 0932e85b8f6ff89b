"""Percentiles against NumPy's, on all the values at once."""

from __future__ import annotations

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers import PercentileObserver
from neural_compressor.schemes import TensorScheme

INT8 = TensorScheme(dtype("int8"))


@pytest.mark.parametrize("percentile", [60, 90, 99, 99.9, 99.99, 100])
@pytest.mark.parametrize("shape", ["normal", "relu", "exponential", "far"])
def test_they_are_within_a_bin_of_the_exact_ones(percentile: float, shape: str) -> None:
    rng = np.random.default_rng(2)
    draw = {
        "normal": lambda: rng.standard_normal(20_000),
        "relu": lambda: np.maximum(rng.standard_normal(20_000), 0),
        "exponential": lambda: rng.exponential(size=20_000),
        "far": lambda: rng.standard_normal(20_000) + 100,
    }[shape]
    batches = [draw().astype(np.float32) for _ in range(5)]
    observer = PercentileObserver(percentile=percentile)
    for x in batches:
        observer.update(x)
    tail = (100 - percentile) / 2
    exact = np.percentile(np.concatenate(batches), [tail, 100 - tail])
    width = float(observer.seen().width[0])
    # Where values are rare NumPy interpolates between neighbours that may be more than a bin apart.
    ordered = np.sort(np.concatenate(batches))
    gap = max(
        np.diff(ordered[max(0, i - 2) : i + 3]).max()
        for i in (int(tail / 100 * ordered.size), int((1 - tail / 100) * (ordered.size - 1)))
    )
    assert np.abs(np.asarray(observer.range(INT8)) - exact).max() <= width + gap


def test_outliers_are_cut_off() -> None:
    x = np.random.default_rng(3).standard_normal(100_000).astype(np.float32)
    x[:3] = 1e4
    observer = PercentileObserver()
    observer.update(x)
    low, high = observer.range(INT8)
    assert -6 < low < -3
    # One bin of the histogram is as wide as the range of the others.
    assert high <= 2 * float(observer.seen().width[0])


@pytest.mark.parametrize("percentile", [50, 0, 101, -1])
def test_percentiles_that_keep_nothing_are_refused(percentile: float) -> None:
    with pytest.raises(ConfigError, match="percentile"):
        PercentileObserver(percentile=percentile)


def test_other_percentiles_do_not_merge() -> None:
    with pytest.raises(CalibrationError, match=r"99 and 99\.9"):
        PercentileObserver(percentile=99).merge(PercentileObserver(percentile=99.9))
