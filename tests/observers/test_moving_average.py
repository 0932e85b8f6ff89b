"""The moving average against the recurrence it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers import MovingAverageObserver
from neural_compressor.schemes import TensorScheme

INT8 = TensorScheme(dtype("int8"))


def recurrence(values: list[float], decay: float) -> float:
    """``m <- (1 - decay) m + decay x`` from zero, divided by the weight it has collected (Adam's bias correction)."""
    mean = 0.0
    for value in values:
        mean = (1 - decay) * mean + decay * value
    return mean / (1 - (1 - decay) ** len(values))


@pytest.mark.parametrize("decay", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("cut", [0, 1, 13, 30])
def test_it_is_the_bias_corrected_recurrence(decay: float, cut: int) -> None:
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal(20).astype(np.float32) * (1 + i) for i in range(30)]
    parts = MovingAverageObserver(decay=decay), MovingAverageObserver(decay=decay)
    for place, x in enumerate(batches):
        parts[place >= cut].update(x)
    low, high = parts[0].merge(parts[1]).range(INT8)
    assert low == pytest.approx(recurrence([float(x.min()) for x in batches], decay), rel=1e-6)
    assert high == pytest.approx(recurrence([float(x.max()) for x in batches], decay), rel=1e-6)


def test_without_decay_it_is_the_mean() -> None:
    observer = MovingAverageObserver(decay=0.0)
    for top in (1.0, 2.0, 6.0):
        observer.update(np.float32([0.0, top]))
    assert observer.range(INT8) == (0.0, 3.0)


def test_after_very_many_batches_it_is_still_a_number() -> None:
    observer = MovingAverageObserver(decay=0.9)
    for _ in range(2000):
        observer.update(np.float32([-1.0, 1.0]))
    assert observer.range(INT8) == (-1.0, 1.0)


def test_other_decays_do_not_merge() -> None:
    with pytest.raises(CalibrationError, match=r"0\.1 and 0\.2"):
        MovingAverageObserver(decay=0.1).merge(MovingAverageObserver(decay=0.2))


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_makes_no_average_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay"):
        MovingAverageObserver(decay=decay)


@pytest.mark.parametrize("axis", [None, 0])
def test_what_is_restored_goes_on_as_the_original(axis):
    observer, again = MovingAverageObserver(axis), MovingAverageObserver(axis)
    observer.update(np.float32([[1, -2], [3, 4]]))
    rest = again.restore(np.concatenate([observer.state(), [7.0]]))
    assert rest.tolist() == [7.0]
    for each in (observer, again):
        each.update(np.float32([[5, -6], [0, 1]]))
    assert np.array_equal(observer.range(None), again.range(None))


def test_the_state_of_an_observer_that_saw_nothing():
    observer = MovingAverageObserver()
    observer.restore(MovingAverageObserver().state())
    with pytest.raises(CalibrationError, match="no data"):
        observer.range(None)
