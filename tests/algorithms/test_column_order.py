"""Orders are permutations, groups stay together, and the important come first."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.algorithms.columns import column_order

moments = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).map(np.asarray)


@given(moments, st.integers(1, 12), st.sampled_from(["plain", "act", "hybrid"]), st.booleans())
def test_every_input_is_taken_once_and_every_place_is_in_one_extent(diagonal, size, kind, static):
    order = column_order(diagonal, size, act_order=kind == "act", hybrid_order=kind == "hybrid", static_groups=static)
    inputs = diagonal.shape[0]
    assert sorted(order.order) == list(range(inputs))
    assert [p for start, stop in order.extents for p in range(start, stop)] == list(range(inputs))
    assert list(order.order[order.inverse]) == list(range(inputs))
    if not order.moved:
        assert list(order.group) == [i // size for i in order.order]
    if not static:
        assert all(len(set(order.group[start:stop])) == 1 for start, stop in order.extents)
        assert len(order.extents) == -(-inputs // size)


@given(moments, st.integers(1, 12))
def test_act_order_takes_the_largest_first_and_keeps_ties_in_place(diagonal, size):
    order = column_order(diagonal, size, act_order=True).order
    taken = [(-diagonal[i], i) for i in order]
    assert taken == sorted(taken)


@given(moments, st.integers(1, 12))
def test_hybrid_order_takes_whole_groups(diagonal, size):
    order = column_order(diagonal, size, hybrid_order=True)
    groups = [diagonal[start : start + size] for start in range(0, diagonal.shape[0], size)]
    means = [groups[order.group[start]].mean() for start, _ in order.extents]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(means))
    for start, stop in order.extents:
        inside = diagonal[order.order[start:stop]]
        assert np.all(np.diff(inside) <= 0)
