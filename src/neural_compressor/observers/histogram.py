"""A histogram that widens without losing or moving a count, and the observers that keep one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from array_api_compat import device, is_numpy_array

from neural_compressor.observers.base import Floats, Observer, no_data, one_value, same_channels, to_numpy
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

if TYPE_CHECKING:
    from typing_extensions import Self

Ints = npt.NDArray[np.int64]
# Float32 has 24 bits: finer bins than this part of the largest value hold nothing more.
_FLOAT_BITS = 23
_FINEST = -126
_TINY = 2.0**_FINEST
_VALUES_A_BIN = 16
"""Values counted at once, to each bin: few enough to stay in a cache, so many that adding up the bins does not matter."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values by channel, in bins whose width is a power of two.

    Bin ``i`` of width ``w`` holds the values with ``trunc(x / w) == i``, so the bins of width ``2w`` are pairs of bins
    of width ``w``. The width is the smallest for which the range fits into the bins there are, and the first bin is
    that of the smallest value. Both depend on the range alone: the same values give the same histogram, in whatever
    order and parts they came.

    Shapes: ``counts`` (channels, bins), the others (channels,).
    """

    counts: Ints
    low: Floats
    high: Floats
    exponent: Ints  # width = 2 ** exponent
    first: Ints  # number of the bin that counts[:, 0] belongs to

    @classmethod
    def of(cls, x: Array, low: Floats, high: Floats, bins: int, axis: int | None) -> Histogram:
        """The histogram of ``x``, whose range by channel is ``[low, high]``."""
        exponent, first = _layout(low, high, bins)
        return cls(_count(x, exponent, first, bins, axis), low, high, exponent, first)

    def including(self, x: Array, low: Floats, high: Floats, axis: int | None) -> Histogram:
        """The histogram of what this one holds and of ``x``, whose range by channel is ``[low, high]``."""
        same_channels(self.low.size, low.size)
        wider = self.widened(low, high)
        counts = wider.counts + _count(x, wider.exponent, wider.first, self.counts.shape[1], axis)
        return Histogram(counts, wider.low, wider.high, wider.exponent, wider.first)

    def __add__(self, other: Histogram) -> Histogram:
        same_channels(self.low.size, other.low.size)
        mine, theirs = self.widened(other.low, other.high), other.widened(self.low, self.high)
        return Histogram(mine.counts + theirs.counts, mine.low, mine.high, mine.exponent, mine.first)

    def widened(self, low: Floats, high: Floats) -> Histogram:
        """The same counts in the layout for a range that also holds ``[low, high]``."""
        if np.all(low >= self.low) and np.all(high <= self.high):
            return self
        low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        bins = self.counts.shape[1]
        exponent, first = _layout(low, high, bins)
        if np.array_equal(exponent, self.exponent) and np.array_equal(first, self.first):
            return Histogram(self.counts, low, high, exponent, first)
        number = self.first[:, None] + np.arange(bins)
        doublings = np.minimum(exponent - self.exponent, 62)[:, None]
        target = np.sign(number) * (np.abs(number) >> doublings) - first[:, None]
        channel, bin_ = np.nonzero(self.counts)
        counts = np.zeros_like(self.counts)
        np.add.at(counts, (channel, target[channel, bin_]), self.counts[channel, bin_])
        return Histogram(counts, low, high, exponent, first)

    @property
    def width(self) -> Floats:
        """The width of a bin, by channel."""
        return np.ldexp(1.0, self.exponent)

    @property
    def edges(self) -> Floats:
        """Where each bin begins and the last one ends, cut to the range seen: (channels, bins + 1)."""
        number = self.first[:, None] + np.arange(self.counts.shape[1] + 1)
        begins = np.where(number > 0, number, number - 1) * self.width[:, None]
        return np.clip(begins, self.low[:, None], self.high[:, None])

    @property
    def centres(self) -> Floats:
        """The value that stands for each bin: its middle, and zero for the bin that zero is in: (channels, bins)."""
        edges = self.edges
        zero = np.clip(0.0, self.low, self.high)[:, None]
        return np.where(self.zero_bin, zero, (edges[:, :-1] + edges[:, 1:]) / 2)

    @property
    def filled(self) -> Ints:
        """The places of the bins that some channel has values in."""
        return np.flatnonzero(self.counts.any(axis=0))

    @property
    def zero_bin(self) -> npt.NDArray[np.bool_]:
        """Which bin holds zero and what is nearest to it: (channels, bins)."""
        holds: npt.NDArray[np.bool_] = self.first[:, None] + np.arange(self.counts.shape[1]) == 0
        return holds


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

    @property
    def constant(self) -> float | None:
        return None if self.histogram is None else one_value(self.histogram.low, self.histogram.high)

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


def _layout(low: Floats, high: Floats, bins: int) -> tuple[Ints, Ints]:
    """Exponent of the width and number of the first bin for the range ``[low, high]`` of each channel."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    peak = np.maximum(np.abs(low), np.abs(high))
    finest = np.maximum(np.frexp(peak)[1].astype(np.int64) - 1 - _FLOAT_BITS, _FINEST)
    # At half this width the range is two times as wide as the bins, at four times this width half as wide.
    exponent = np.maximum(np.frexp(np.maximum(high - low, _TINY) / bins)[1].astype(np.int64) - 1, finest)
    for _ in range(2):
        span = np.trunc(np.ldexp(high, -exponent)) - np.trunc(np.ldexp(low, -exponent))
        exponent = np.where(span >= bins, exponent + 1, exponent)
    return exponent, np.trunc(np.ldexp(low, -exponent)).astype(np.int64)


def _count(x: Array, exponent: Ints, first: Ints, bins: int, axis: int | None) -> Ints:
    x = as_float32(x)
    xp = array_namespace(x)
    channels = exponent.size
    rows = xp.reshape(x if axis is None else xp.moveaxis(x, axis, 0), (channels, -1))
    step = _VALUES_A_BIN * bins if is_numpy_array(x) else max(rows.shape[1], 1)
    scale = like(np.ldexp(1.0, -exponent)[:, None], x)
    offset = xp.asarray((np.arange(channels) * bins - first)[:, None].astype(np.int32), device=device(x))
    counts = np.zeros(channels * bins, dtype=np.int64)
    for begin in range(0, rows.shape[1], step):
        # Conversion to an integer truncates, which is what numbers the bins.
        number = xp.astype(rows[:, begin : begin + step] * scale, xp.int32)
        number += offset
        counts += to_numpy(xp.bincount(xp.reshape(number, (-1,)), minlength=channels * bins))
    return counts.reshape(channels, bins)
