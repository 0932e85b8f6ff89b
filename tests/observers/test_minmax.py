"""The exact range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.dtypes import dtype
from neural_compressor.observers import OBSERVERS, MinMaxObserver
from neural_compressor.schemes import TensorScheme

INT8 = TensorScheme(dtype("int8"))
ARRAYS = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.just(3)),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


@given(st.lists(ARRAYS, min_size=1, max_size=5))
def test_it_is_the_minimum_and_the_maximum(batches: list[np.ndarray]) -> None:
    whole, by_channel = MinMaxObserver(), MinMaxObserver(axis=1)
    for x in batches:
        whole.update(x)
        by_channel.update(x)
    everything = np.concatenate(batches)
    assert whole.range(INT8) == (everything.min(), everything.max())
    assert np.array_equal(by_channel.range(INT8), [everything.min(axis=0), everything.max(axis=0)])


@pytest.mark.parametrize("name", ["minmax", "kl", "mse", "percentile"])
def test_one_value_that_was_all_there_was_is_known(name: str) -> None:
    observer = OBSERVERS[name]()
    assert observer.constant is None
    for _ in range(2):
        observer.update(np.full((2, 3), -0.5, np.float32))
        assert observer.constant == -0.5
    observer.update(np.float32([0.25]))
    assert observer.constant is None
