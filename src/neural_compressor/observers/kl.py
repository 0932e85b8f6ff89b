"""The range that keeps the distribution of values, in the sense of Kullback and Leibler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from neural_compressor.dtypes import IntType
from neural_compressor.observers.base import OBSERVERS, Floats
from neural_compressor.observers.histogram import Histogram
from neural_compressor.observers.histogram_observer import HistogramObserver
from neural_compressor.observers.threshold_search import best_symmetric, quantized_centres
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.affine import integer_limits

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
        levels = _levels(scheme)

        def loss(low: Floats, high: Floats) -> Floats:
            return divergence(seen, low, high, scheme, levels)

        low, high = best_symmetric(seen, loss)
        return self.shaped(low), self.shaped(high)


def divergence(histogram: Histogram, low: Floats, high: Floats, scheme: TensorScheme, levels: int) -> Floats:
    """KL divergence, by channel, of the quantized from the clipped distribution over ``[low, high]``.

    Infinite where clipping leaves fewer bins than the data type has levels: there every bin keeps a level of its own, and
    the comparison says nothing. The whole range is always admitted.
    """
    channels, bins = histogram.counts.shape
    centres = histogram.centres
    inside = (centres >= low[:, None]) & (centres <= high[:, None])
    whole = (low <= histogram.low) & (high >= histogram.high)
    kept = np.where(inside, histogram.counts, 0)
    clipped = kept.astype(np.float64)
    row = np.arange(channels)
    # Clipping moves what is outside into the outermost bins inside.
    clipped[row, np.argmax(inside, axis=1)] += np.sum(histogram.counts * (centres < low[:, None]), axis=1)
    clipped[row, bins - 1 - np.argmax(inside[:, ::-1], axis=1)] += np.sum(
        histogram.counts * (centres > high[:, None]), axis=1
    )
    spread = _spread(kept, _runs(quantized_centres(histogram, low, high, scheme)))
    total = np.maximum(kept.sum(axis=1, keepdims=True), 1)
    p = clipped / clipped.sum(axis=1, keepdims=True)
    q = np.maximum(spread / total, _SMALLEST_SHARE)
    value = np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / q), 0.0), axis=1)
    admitted = whole | ((inside.sum(axis=1) >= levels) & (kept.sum(axis=1) > 0))
    return np.where(admitted, value, np.inf)


def _levels(scheme: TensorScheme) -> int:
    kind = scheme.dtype
    if isinstance(kind, IntType):
        low, high = integer_limits(scheme)
        return high - low + 1
    return len(kind.grid)


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
