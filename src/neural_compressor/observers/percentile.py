"""The range that holds a given share of the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers.base import OBSERVERS, Floats, Observer
from neural_compressor.observers.histogram import Histogram, HistogramObserver
from neural_compressor.schemes import TensorScheme

if TYPE_CHECKING:
    from typing_extensions import Self


@OBSERVERS.register("percentile")
class PercentileObserver(HistogramObserver):
    """Cuts off the same share of the smallest and of the largest values, so that ``percentile`` percent stay.

    >>> observer = PercentileObserver(percentile=90)
    >>> observer.update(np.arange(1001, dtype=np.float32))
    >>> [round(float(side)) for side in observer.range(None)]
    [50, 950]
    """

    def __init__(self, axis: int | None = None, percentile: float = 99.99) -> None:
        super().__init__(axis)
        if not 50 < percentile <= 100:
            raise ConfigError(f"a percentile to keep is above 50 and at most 100, not {percentile}")
        self.percentile = percentile

    def empty(self) -> Self:
        return type(self)(self.axis, self.percentile)

    def check_mergeable(self, other: Observer) -> None:
        super().check_mergeable(other)
        if isinstance(other, PercentileObserver) and other.percentile != self.percentile:
            raise CalibrationError(f"observers of percentile {self.percentile} and {other.percentile} cannot be merged")

    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        seen = self.seen()
        tail = (1 - self.percentile / 100) / 2
        return self.shaped(quantile(seen, tail)), self.shaped(quantile(seen, 1 - tail))


def quantile(histogram: Histogram, share: float) -> Floats:
    """The value below which ``share`` of the values of each channel lie, values spread evenly inside a bin."""
    counts, edges = histogram.counts, histogram.edges
    reached = np.cumsum(counts, axis=1)
    wanted = share * reached[:, -1:]
    # The first bin that reaches the share; empty bins before the first value reach nothing and are passed over.
    bin_ = np.argmax((reached >= wanted) & (reached > 0), axis=1)
    row = np.arange(counts.shape[0])
    inside = counts[row, bin_]
    before = reached[row, bin_] - inside
    part = np.clip((wanted[:, 0] - before) / np.maximum(inside, 1), 0.0, 1.0)
    begin, end = edges[row, bin_], edges[row, bin_ + 1]
    value: Floats = np.clip(begin + part * (end - begin), histogram.low, histogram.high)
    return value
