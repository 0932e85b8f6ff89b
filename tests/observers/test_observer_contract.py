"""Every observer keeps the contract that is shipped for others."""

from __future__ import annotations

from typing import Any

import pytest

from neural_compressor.observers import OBSERVERS, MinMaxObserver, Observer
from neural_compressor.testing import ObserverContract


class TestMinMax(ObserverContract):
    algorithm, tolerance = "minmax", 0


class TestMovingAverage(ObserverContract):
    algorithm = "moving_average"


class TestPercentile(ObserverContract):
    algorithm, tolerance = "percentile", 0


class TestKL(ObserverContract):
    algorithm, tolerance = "kl", 0


class TestMSE(ObserverContract):
    algorithm, tolerance = "mse", 0


def test_every_registered_observer_is_tested_here() -> None:
    tested = {suite.algorithm for suite in (TestMinMax, TestMovingAverage, TestPercentile, TestKL, TestMSE)}
    assert tested == set(OBSERVERS.names())


def test_the_suite_notices_an_observer_that_forgets() -> None:
    class Forgetful(MinMaxObserver):
        def merge(self, other: MinMaxObserver) -> MinMaxObserver:
            return self

    class Suite(ObserverContract):
        algorithm = "minmax"

        def make_observer(self, axis: int | None = None) -> Observer:
            return Forgetful(axis)

    with pytest.raises(AssertionError):
        Suite().test_merged_parts_equal_the_whole(axis=None, cut=1)


class Hoarder(MinMaxObserver):
    def update(self, x: Any) -> None:
        super().update(x)
        self.kept = [*getattr(self, "kept", []), x]


def test_the_suite_notices_an_observer_that_hoards() -> None:
    class Suite(ObserverContract):
        algorithm = "minmax"

        def make_observer(self, axis: int | None = None) -> Observer:
            return Hoarder(axis)

    with pytest.raises(AssertionError):
        Suite().test_memory_does_not_grow_with_the_number_of_batches()
