"""The range that keeps the distribution of values, in the sense of Kullback and Leibler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from neural_compressor.dtypes import IntType
from neural_compressor.observers.base import OBSERVERS, Floats
from neural_compressor.observers.histogram import Histogram
from neural_compressor.observers.histogram_observer import HistogramObserver
from neural_compressor.observers.threshold_search import Loss, best_symmetric, quantized_rows
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.mapping import element_type

_SMALLEST_SHARE = 1e-10
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
    centres, counts = histogram.centres, histogram.counts

    def error(values: Floats) -> Floats:
        total: Floats = np.sum(counts * (values - centres) ** 2, axis=1)
        return total

    most = error(quantized_rows(centres, histogram.low, histogram.high, scheme))
    outliers = _OUTLIERS * counts.sum(axis=1)

    def loss(low: Floats, high: Floats) -> Floats:
        values = quantized_rows(centres, low, high, scheme)
        outside = (centres < low[:, None]) | (centres > high[:, None])
        harmless = (error(values) <= most) | (np.sum(counts * outside, axis=1) <= outliers)
        enough = np.sum(~outside, axis=1) >= _levels(scheme)
        whole = (low <= histogram.low) & (high >= histogram.high)
        value = divergence(histogram, centres, values, low, high)
        return np.where(whole | (harmless & enough), value, np.inf)

    return loss


def divergence(histogram: Histogram, centres: Floats, values: Floats, low: Floats, high: Floats) -> Floats:
    """KL divergence, by channel, of the quantized from the clipped distribution over ``[low, high]``.

    ``values`` is what the centres of the bins are quantized to.
    """
    # Zero is a level of its own, so the heap that a ReLU leaves there is no loss and must not weigh as one.
    counts = np.where(histogram.zero_bin, 0, histogram.counts)
    below, above = centres < low[:, None], centres > high[:, None]
    inside = ~(below | above)
    kept = np.where(inside, counts, 0)
    clipped = kept + _at_edge(inside, counts * below) + _at_edge(inside[:, ::-1], counts * above)[:, ::-1]
    spread = _spread(kept, _runs(values))
    p = clipped / np.maximum(clipped.sum(axis=1, keepdims=True), 1)
    q = np.maximum(spread / np.maximum(kept.sum(axis=1, keepdims=True), 1), _SMALLEST_SHARE)
    total: Floats = np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / q), 0.0), axis=1)
    return total


def _at_edge(inside: npt.NDArray[np.bool_], outside: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What clipping moves into the first bin inside."""
    moved = np.zeros_like(outside)
    moved[np.arange(len(outside)), np.argmax(inside, axis=1)] = outside.sum(axis=1)
    return moved


def _levels(scheme: TensorScheme) -> int:
    kind = element_type(scheme)
    return 1 << (kind.bits - scheme.reduce_range) if isinstance(kind, IntType) else len(kind.grid)


def _runs(values: Floats) -> npt.NDArray[np.int64]:
    """Numbers the runs of equal values of each row: bins that share a level, since rounding keeps order."""
    changes = np.diff(values, axis=1, prepend=values[:, :1]) != 0
    return np.cumsum(changes, axis=1)


def _spread(counts: npt.NDArray[np.int64], run: npt.NDArray[np.int64]) -> Floats:
    """The counts of each run shared evenly among its bins that are not empty."""
    channels, bins = counts.shape
    key = (run + np.arange(channels)[:, None] * bins).reshape(-1)
    filled = (counts > 0).reshape(-1)
    mass = np.bincount(key, weights=counts.reshape(-1), minlength=channels * bins)
    members = np.bincount(key, weights=filled, minlength=channels * bins)
    shared = np.where(filled, mass[key] / np.maximum(members[key], 1), 0.0)
    return shared.reshape(channels, bins)
