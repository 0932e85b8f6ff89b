"""Ranges from the smallest and largest value of each batch: the widest of them, or a moving average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers.base import OBSERVERS, Floats, Observer, no_data, one_value, same_channels
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.arrays import Array

if TYPE_CHECKING:
    from typing_extensions import Self


@OBSERVERS.register("minmax")
class MinMaxObserver(Observer):
    """The exact range of everything seen.

    >>> observer = MinMaxObserver()
    >>> observer.update(np.float32([1.0, -3.0]))
    >>> observer.update(np.float32([2.0]))
    >>> [float(side) for side in observer.range(None)]
    [-3.0, 2.0]
    """

    def __init__(self, axis: int | None = None) -> None:
        super().__init__(axis)
        self.low: Floats | None = None
        self.high: Floats | None = None

    def update(self, x: Array) -> None:
        if 0 not in x.shape:
            self._widen(*self.batch_range(x))

    def merge(self, other: Self) -> Self:
        self.check_mergeable(other)
        merged = type(self)(self.axis)
        for part in (self, other):
            if part.low is not None and part.high is not None:
                merged._widen(part.low, part.high)
        return merged

    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        if self.low is None or self.high is None:
            raise no_data()
        return self.shaped(self.low), self.shaped(self.high)

    @property
    def constant(self) -> float | None:
        return one_value(self.low, self.high)

    def _widen(self, low: Floats, high: Floats) -> None:
        if self.low is None or self.high is None:
            self.low, self.high = low, high
            return
        same_channels(self.low.size, low.size)
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)


@OBSERVERS.register("moving_average")
class MovingAverageObserver(Observer):
    """The average of batch ranges in which each batch counts ``1 - decay`` times as much as the one after it.

    Kept as weighted sums rather than as averages: sums of two parts add up to that of the whole.

    >>> observer = MovingAverageObserver(decay=0.5)
    >>> for top in (1.0, 4.0):
    ...     observer.update(np.float32([0.0, top]))
    >>> float(observer.range(None)[1])
    3.0
    """

    def __init__(self, axis: int | None = None, decay: float = 0.01) -> None:
        super().__init__(axis)
        if not 0 <= decay < 1:
            raise ConfigError(f"the decay of a moving average is at least 0 and below 1, not {decay}")
        self.decay = decay
        self.batches = 0
        self.weight = 0.0
        self.sums: Floats | None = None  # (2, channels): weighted sums of the lows and the highs

    def update(self, x: Array) -> None:
        if 0 not in x.shape:
            self._append(np.stack(self.batch_range(x)).astype(np.float64), 1.0, 1)

    def merge(self, other: Self) -> Self:
        self.check_mergeable(other)
        merged = type(self)(self.axis, self.decay)
        for part in (self, other):
            if part.sums is not None:
                merged._append(part.sums, part.weight, part.batches)
        return merged

    def check_mergeable(self, other: Observer) -> None:
        super().check_mergeable(other)
        if isinstance(other, MovingAverageObserver) and other.decay != self.decay:
            raise CalibrationError(f"moving averages of decay {self.decay} and {other.decay} cannot be merged")

    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        if self.sums is None:
            raise no_data()
        low, high = self.sums / self.weight
        return self.shaped(low), self.shaped(high)

    def state(self) -> Floats:
        """All that is kept, in one array."""
        sums = np.zeros((2, 0)) if self.sums is None else self.sums
        return np.array([sums.shape[1], self.batches, self.weight, *sums.ravel()], np.float64)

    def restore(self, state: Floats) -> Floats:
        """Take over what :meth:`state` of another gave; returns what stands behind it in ``state``."""
        end = 3 + 2 * int(state[0])
        self.batches, self.weight = int(state[1]), float(state[2])
        self.sums = state[3:end].reshape(2, -1).copy() if state[0] else None
        return state[end:]

    def _append(self, sums: Floats, weight: float, batches: int) -> None:
        if self.sums is None:
            self.sums, self.weight, self.batches = sums, weight, batches
            return
        same_channels(self.sums.shape[1], sums.shape[1])
        fade = (1 - self.decay) ** batches
        self.sums = self.sums * fade + sums
        self.weight = self.weight * fade + weight
        self.batches += batches
