"""Every observer keeps the contract that is shipped for others."""

from __future__ import annotations

import pytest

from neural_compressor.observers import OBSERVERS
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
    class Forgetful(ObserverContract):
        algorithm = "minmax"

        def seen(self, batches: list, axis: int | None = None):  # type: ignore[no-untyped-def, type-arg]
            return super().seen(batches[-1:], axis)

    with pytest.raises(AssertionError):
        Forgetful().test_merged_parts_equal_the_whole(axis=None, cut=3)
