"""The range that keeps the distribution of values, in the sense of Kullback and Leibler."""

from __future__ import annotations

import numpy as np

from neural_compressor.observers.base import OBSERVERS, Floats
from neural_compressor.observers.divergence import Divergence, bins_inside, running_sum
from neural_compressor.observers.histogram import Histogram, Ints
from neural_compressor.observers.histogram_observer import HistogramObserver
from neural_compressor.observers.threshold_search import Loss, best_symmetric, quantized_rows
from neural_compressor.schemes import TensorScheme

_OUTLIERS = 1e-4
"""The share of values so rare that they may be clipped however far away they are."""


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


def _levels(scheme: TensorScheme) -> int:
    kind = scheme.dtype.element_type
    return len(kind.grid) >> (kind.is_integer and scheme.reduce_range)
