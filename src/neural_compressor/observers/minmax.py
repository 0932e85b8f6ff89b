"""The smallest and largest value seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neural_compressor.observers.base import OBSERVERS, Floats, Observer, no_data, same_channels
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

    def _widen(self, low: Floats, high: Floats) -> None:
        if self.low is None or self.high is None:
            self.low, self.high = low, high
            return
        same_channels(self.low.size, low.size)
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
