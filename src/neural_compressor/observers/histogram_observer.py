"""What the observers that look at the distribution of values share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from neural_compressor.observers.base import Observer, no_data
from neural_compressor.observers.histogram import Histogram
from neural_compressor.schemes.arrays import Array

if TYPE_CHECKING:
    from typing_extensions import Self


class HistogramObserver(Observer):
    """Keeps a :class:`Histogram`; subclasses say which range they read off it."""

    bins_per_tensor: ClassVar[int] = 4096
    #: Fewer, because there is a histogram for each of maybe thousands of channels.
    bins_per_channel: ClassVar[int] = 512

    def __init__(self, axis: int | None = None) -> None:
        super().__init__(axis)
        self.histogram: Histogram | None = None

    def update(self, x: Array) -> None:
        if 0 in x.shape:
            return
        low, high = self.batch_range(x)
        if self.histogram is None:
            bins = self.bins_per_tensor if self.axis is None else self.bins_per_channel
            self.histogram = Histogram.of(x, low, high, bins, self.axis)
        else:
            self.histogram = self.histogram.including(x, low, high, self.axis)

    def merge(self, other: Self) -> Self:
        self.check_mergeable(other)
        merged = self.empty()
        if self.histogram is not None and other.histogram is not None:
            merged.histogram = self.histogram + other.histogram
        else:
            merged.histogram = self.histogram or other.histogram
        return merged

    def empty(self) -> Self:
        """An observer with the same options that has seen nothing."""
        return type(self)(self.axis)

    def seen(self) -> Histogram:
        """The histogram, where there is one."""
        if self.histogram is None:
            raise no_data()
        return self.histogram
