"""Ranges over the parts of a tensor, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PER_TENSOR, PerChannel, PerGroup, value_range
from neural_compressor.schemes.granularity import Granularity
from neural_compressor.schemes.ranges import against_parts, from_parts, require_finite, scale_shape, to_parts


def part_of(index: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """Where the scale of one element stands."""
    if isinstance(granularity, PerChannel):
        return (index[granularity.axis],)
    if isinstance(granularity, PerGroup):
        return (*index[:-1], index[-1] // granularity.size)
    return ()


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
GRANULARITIES = st.one_of(
    st.just(PER_TENSOR), st.builds(PerChannel, st.integers(-4, 3)), st.builds(PerGroup, st.integers(1, 7))
)


@settings(max_examples=150)
@given(SHAPES, GRANULARITIES)
def test_ranges_are_those_of_a_loop(shape: tuple[int, ...], granularity: Granularity) -> None:
    if isinstance(granularity, PerChannel) and not -len(shape) <= granularity.axis < len(shape):
        with pytest.raises(QuantizationError, match="no channel axis"):
            value_range(np.zeros(shape, np.float32), granularity)
        return
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    parts: dict[tuple[int, ...], list[float]] = {}
    for index in np.ndindex(shape):
        parts.setdefault(part_of(index, granularity), []).append(float(x[index]))
    low, high = value_range(x, granularity)
    assert low.shape == high.shape == scale_shape(shape, granularity)
    assert len(parts) == low.size
    for part, values in parts.items():
        assert (low[part], high[part]) == (min(values), max(values))
    theirs = value_range(torch.from_numpy(x), granularity)
    assert np.array_equal(theirs[0].numpy(), low)
    assert np.array_equal(theirs[1].numpy(), high)


@settings(max_examples=100)
@given(SHAPES, GRANULARITIES)
def test_each_element_meets_its_own_scale(shape: tuple[int, ...], granularity: Granularity) -> None:
    if isinstance(granularity, PerChannel) and not -len(shape) <= granularity.axis < len(shape):
        return
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    scale = np.random.default_rng(2).uniform(1, 2, scale_shape(shape, granularity)).astype(np.float32)
    product = from_parts(to_parts(x, granularity) * against_parts(scale, shape, granularity), shape, granularity)
    for index in np.ndindex(shape):
        assert product[index] == x[index] * scale[part_of(index, granularity)]


def test_a_scale_of_another_shape_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"scales of shape \(4,\), not \(3,\)"):
        against_parts(np.ones(3, np.float32), (4, 5), PerChannel(0))


def test_an_empty_tensor_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"shape \(0, 3\) has no values"):
        value_range(np.zeros((0, 3), np.float32), PER_TENSOR)


def test_a_number_has_no_groups() -> None:
    with pytest.raises(QuantizationError, match="per_tensor"):
        value_range(np.float32(1.0), PerGroup(4))


def test_short_floats_gradients_and_integers_are_taken() -> None:
    x = torch.tensor([-1.5, 2.0], requires_grad=True)
    for given_ in (x, x.to(torch.bfloat16), x.to(torch.float64)):
        low, high = value_range(given_, PER_TENSOR)
        assert (float(low), float(high)) == (-1.5, 2.0)
        assert not low.requires_grad
    assert value_range(np.asarray([3, -4]), PER_TENSOR)[0] == -4.0


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_range_that_is_not_finite_says_in_how_many_parts(make):
    with pytest.raises(QuantizationError, match="in 1 of 3 parts"):
        require_finite(make([0.0, math.nan, 1.0]), make([1.0, 1.0, 1.0]))
