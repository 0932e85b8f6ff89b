"""The scale that balances activations and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.algorithms import smooth_scale
from neural_compressor.errors import ConfigError

sizes = st.lists(st.floats(2.0**-10, 2.0**10, width=32), min_size=4, max_size=4).map(np.float32)


@given(sizes, sizes)
def test_half_way_both_sides_are_equally_large(activation: Any, weight: Any) -> None:
    scale = smooth_scale(activation, weight, 0.5)
    np.testing.assert_allclose(activation / scale, weight * scale, rtol=1e-5)


@given(sizes, sizes)
def test_the_ends_leave_one_side_flat(activation: Any, weight: Any) -> None:
    np.testing.assert_allclose(activation / smooth_scale(activation, weight, 1.0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(weight * smooth_scale(activation, weight, 0.0), 1.0, rtol=1e-5)


def test_what_is_always_zero_keeps_its_scale() -> None:
    assert smooth_scale(np.float32([0, 3, 0]), np.float32([2, 0, 0])).tolist() == [1, 1, 1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha goes from 0"):
        smooth_scale(np.ones(2, np.float32), np.ones(2, np.float32), 1.1)
    with pytest.raises(ConfigError, match="both sides"):
        smooth_scale(np.ones(2, np.float32), np.ones(3, np.float32))
