"""The widening histogram: nothing lost, nothing moved, whatever the order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.observers import Histogram

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
BATCHES = st.lists(npst.arrays(np.float32, st.integers(1, 20), elements=NUMBERS), min_size=1, max_size=6)
BINS = 64


def of(x: np.ndarray, bins: int = BINS) -> Histogram:
    return Histogram.of(x, x.min(keepdims=True), x.max(keepdims=True), bins, None)


def one_by_one(batches: list[np.ndarray]) -> Histogram:
    histogram = of(batches[0])
    for x in batches[1:]:
        histogram = histogram.including(x, x.min(keepdims=True), x.max(keepdims=True), None)
    return histogram


def assert_equal(a: Histogram, b: Histogram) -> None:
    for name in ("counts", "low", "high", "exponent", "first"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@settings(max_examples=200)
@given(BATCHES, st.randoms(use_true_random=False))
def test_parts_in_any_order_give_the_histogram_of_the_whole(batches: list[np.ndarray], random: object) -> None:
    whole = of(np.concatenate(batches))
    assert_equal(one_by_one(batches), whole)
    shuffled = list(batches)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    half = len(batches) // 2
    assert_equal(one_by_one(shuffled), whole)
    if half:
        assert_equal(one_by_one(shuffled[:half]) + one_by_one(shuffled[half:]), whole)


@settings(max_examples=200)
@given(BATCHES)
def test_each_value_is_in_the_bin_that_its_size_says(batches: list[np.ndarray]) -> None:
    x = np.concatenate(batches)
    found = one_by_one(batches)
    width = math.ldexp(1.0, int(found.exponent[0]))
    expected = np.zeros(BINS, np.int64)
    for value in x.tolist():
        expected[math.trunc(value / width) - int(found.first[0])] += 1
    assert found.counts[0].tolist() == expected.tolist()


@settings(max_examples=200)
@given(BATCHES)
def test_no_value_moves_by_more_than_a_bin(batches: list[np.ndarray]) -> None:
    x = np.sort(np.concatenate(batches)).astype(np.float64)
    found = one_by_one(batches)
    stand_ins = np.repeat(found.centres[0], found.counts[0])
    assert stand_ins.size == x.size
    assert np.all(np.abs(np.sort(stand_ins) - x) <= found.width[0])
    assert np.all((found.low[0] <= stand_ins) & (stand_ins <= found.high[0]))


@settings(max_examples=200)
@given(BATCHES)
def test_the_width_is_the_smallest_that_fits(batches: list[np.ndarray]) -> None:
    found = one_by_one(batches)
    low, high, exponent = float(found.low[0]), float(found.high[0]), int(found.exponent[0])

    def bins_needed(e: int) -> int:
        return math.trunc(math.ldexp(high, -e)) - math.trunc(math.ldexp(low, -e)) + 1

    assert bins_needed(exponent) <= BINS
    floor = max(math.frexp(max(abs(low), abs(high)))[1] - 24, -126)
    assert exponent == floor or bins_needed(exponent - 1) > BINS


def test_edges_hold_the_range_and_follow_each_other() -> None:
    x = np.float32([-3.0, -0.1, 0.0, 0.2, 7.5])
    found = of(x)
    edges = found.edges[0]
    assert np.all(np.diff(edges) >= 0)
    assert (edges[0], edges[-1]) == (-3.0, 7.5)
    assert np.all((edges[:-1] <= found.centres[0]) & (found.centres[0] <= edges[1:]))
    assert found.centres[0][found.zero_bin[0]] == 0.0


def test_channels_are_counted_apart() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32) * np.float32([[[1], [10], [0.01]]])
    low, high = x.min(axis=(0, 2)), x.max(axis=(0, 2))
    together = Histogram.of(x, low, high, BINS, 1)
    theirs = Histogram.of(torch.from_numpy(x), low, high, BINS, 1)
    assert_equal(together, theirs)
    for channel in range(3):
        alone = of(x[:, channel])
        assert np.array_equal(together.counts[channel], alone.counts[0])
        assert together.exponent[channel] == alone.exponent[0]


@pytest.mark.parametrize("count", [16 * BINS, 16 * BINS + 1, 5000])
def test_no_value_of_a_large_array_is_counted_twice_or_left_out(count: int) -> None:
    x = np.random.default_rng(1).laplace(size=(2, count)).astype(np.float32)
    found = Histogram.of(x, x.min(axis=1), x.max(axis=1), BINS, 0)
    for channel, values in enumerate(x):
        number = np.trunc(values / found.width[channel]).astype(int) - found.first[channel]
        assert np.array_equal(found.counts[channel], np.bincount(number, minlength=BINS))


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-45, 3.4e38, -7.3])
def test_one_value_has_one_bin_and_stands_for_itself(value: float) -> None:
    x = np.full(9, value, np.float32)
    found = of(x)
    assert found.counts[0, 0] == 9
    assert found.centres[0, 0] == x[0]
