"""The range that keeps the distribution of values, in the sense of Kullback and Leibler."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neural_compressor.observers.base import OBSERVERS, Floats
from neural_compressor.observers.histogram import Histogram, HistogramObserver, Ints
from neural_compressor.observers.threshold_search import Loss, best_symmetric, quantized_rows
from neural_compressor.schemes import TensorScheme

_OUTLIERS = 1e-4
"""The share of values so rare that they may be clipped however far away they are."""
_SMALLEST_SHARE = 1e-10


@OBSERVERS.register("kl", "entropy")
class KLObserver(HistogramObserver):
    """Compares the distribution of clipped values with what quantization leaves of it, over thresholds ``[-t, t]``.

    >>> from neural_compressor.dtypes import dtype
    >>> observer = KLObserver()
    >>> observer.update(np.append(np.random.default_rng(0).normal(size=10_000), 100.0).astype(np.float32))
    >>> bool(observer.range(TensorScheme(dtype("int8")))[1] < 50)
    True
    """

    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        seen = self.seen()
        low, high = best_symmetric(seen, clipping_loss(seen, scheme))
        return self.shaped(low), self.shaped(high)


def clipping_loss(histogram: Histogram, scheme: TensorScheme) -> Loss:
    """The divergence, by channel, of clipping what ``histogram`` holds; infinite where it says nothing of the harm.

    It does not see how far a value is moved: of values heaped up near zero it would give away the few large ones that the
    next op lives on. So it chooses among ranges that make no more squared error than the whole one, or leave nothing but
    outliers outside; and that leave more bins than the data type has levels, or each bin would keep one of its own.
    """
    channels, levels = np.arange(len(histogram.counts)), _levels(scheme)
    centres, held, divergence = histogram.centres, running_sum(histogram.counts), Divergence(histogram)
    filled, counts = centres[:, histogram.filled], histogram.counts[:, histogram.filled]

    def quantized(channel: Ints, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """What the bins that are not empty become, and the squared error of that."""
        own = slice(None) if len(channels) == 1 else channel
        values = quantized_rows(filled[own], low, high, scheme)
        return values, np.sum(counts[own] * (values - filled[own]) ** 2, axis=1)

    most = quantized(channels, histogram.low, histogram.high)[1]

    def loss(low: Floats, high: Floats) -> Floats:
        total = np.full(low.shape, np.inf)
        begin, end = bins_inside(centres, low, high)
        whole = (low <= histogram.low) & (high >= histogram.high)
        row = np.flatnonzero(whole | (end - begin >= levels))
        if not row.size:
            return total
        channel = np.broadcast_to(channels, low.shape)[row]
        outside = held[channel, -1] - held[channel, end[row]] + held[channel, begin[row]]
        values, error = quantized(channel, low[row], high[row])
        fair = whole[row] | (outside <= _OUTLIERS * held[channel, -1]) | (error <= most[channel])
        row, channel = row[fair], channel[fair]
        total[row] = divergence(values[fair], channel, begin[row], end[row])
        return total

    return loss


class Divergence:
    """Divergences of what quantization leaves of a histogram from the histogram, both clipped to the same range.

    Bins that share a level are a run, whose sums are differences of running sums: a range costs as much time as the data
    type has levels, however many bins there are.
    """

    def __init__(self, histogram: Histogram) -> None:
        # Zero is a level of its own, so the heap that a ReLU leaves there is no loss and must not weigh as one.
        self.counts = np.where(histogram.zero_bin, 0, histogram.counts)
        self.places = np.append(histogram.filled, self.counts.shape[1])
        self.mass = running_sum(self.counts)
        self.members = running_sum(self.counts > 0)
        self.logs = running_sum(_times_log(self.counts))

    def __call__(self, values: Floats, channel: Ints, begin: Ints, end: Ints) -> Floats:
        """The divergence for each row of ``values``, which are what the filled bins of its ``channel`` are quantized to.

        The range holds the bins from ``begin`` up to ``end``: two at least, or all there are.
        """
        row, place = np.nonzero(_changes(values))
        cut = np.clip(self.places[place], begin[row], end[row])
        # Runs outside the range have shrunk to nothing; so must what is between the end of a row and the next row.
        inner = np.append(row[1:] == row[:-1], False)
        mass = inner * np.diff(self.mass[channel[row], cut], append=0)
        members = inner * np.diff(self.members[channel[row], cut], append=0)
        total, kept = self.mass[channel, -1], self.mass[channel, end] - self.mass[channel, begin]
        share = mass / np.maximum(members, 1) / np.maximum(kept, 1)[row]
        log_share = np.log(np.maximum(share, _SMALLEST_SHARE))
        difference = self.logs[channel, end] - self.logs[channel, begin]
        difference -= np.bincount(row, mass * log_share, minlength=len(values))
        # What is outside moves into the bin at its end of the range, and nothing is quantized into one that was empty.
        bins = self.counts.shape[1] + 1
        for edge, moved in ((begin, self.mass[channel, begin]), (end - 1, total - self.mass[channel, end])):
            own = self.counts[channel, edge]
            run = np.searchsorted(row * bins + cut, np.arange(len(values)) * bins + edge, side="right") - 1
            log_there = np.where(own > 0, log_share[run], np.log(_SMALLEST_SHARE))
            difference += _times_log(own + moved) - _times_log(own) - moved * log_there
        total = np.maximum(total, 1)
        divergence: Floats = difference / total - np.log(total)
        return divergence


def bins_inside(centres: Floats, low: Floats, high: Floats) -> tuple[Ints, Ints]:
    """The first of the bins with centres in ``[low, high]``, and the first behind them; of one channel, for many ranges."""
    if len(centres) == 1:
        return np.searchsorted(centres[0], low), np.searchsorted(centres[0], high, side="right")
    return np.sum(centres < low[:, None], axis=1), np.sum(centres <= high[:, None], axis=1)


def running_sum(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sum of what is before each place of a row, and of all of it: one place more than a row has."""
    return np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)


def _times_log(counts: npt.NDArray[Any]) -> Floats:
    product: Floats = counts * np.log(np.maximum(counts, 1))
    return product


def _changes(values: Floats) -> npt.NDArray[np.bool_]:
    """Where a value of a row is not the one before it, and where a row ends: one place more than a row has."""
    changes = np.ones((len(values), values.shape[1] + 1), dtype=np.bool_)
    np.not_equal(values[:, 1:], values[:, :-1], out=changes[:, 1:-1])
    return changes


def _levels(scheme: TensorScheme) -> int:
    kind = scheme.dtype.element_type
    return len(kind.grid) >> (kind.is_integer and scheme.reduce_range)
