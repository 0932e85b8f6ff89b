"""Search of the clipping threshold that loses least, for losses that have no closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from neural_compressor.observers.base import Floats
from neural_compressor.observers.histogram import Histogram
from neural_compressor.schemes import PER_CHANNEL, TensorScheme, choose_qparams, fake_quantize

Loss = Callable[[Floats, Floats], Floats]
"""Loss by channel of clipping to ``[low, high]``; where there is one channel, of each of several ranges for it."""

_COARSE, _FINE = 64, 24


def quantized_rows(rows: Floats, low: Floats, high: Floats, scheme: TensorScheme) -> Floats:
    """What the values of each row become when it is quantized over its ``[low, high]``; one row, over each of several."""
    low, high = np.broadcast_arrays(low, high)
    rows = np.broadcast_to(rows, (len(low), rows.shape[1]))
    by_channel = replace(scheme, granularity=PER_CHANNEL)
    qparams = choose_qparams(low.astype(np.float32), high.astype(np.float32), by_channel)
    values: Floats = fake_quantize(rows, by_channel, qparams)
    return values


def best_symmetric(histogram: Histogram, loss: Loss) -> tuple[Floats, Floats]:
    """The best range of the form ``[-t, t]`` cut to what was seen."""
    peak = np.maximum(np.abs(histogram.low), np.abs(histogram.high))

    def ends(threshold: Floats) -> tuple[Floats, Floats]:
        return _cut(histogram, -threshold), _cut(histogram, threshold)

    return ends(_best(lambda t: loss(*ends(t)), peak, histogram.width))


def best_ends(histogram: Histogram, loss: Loss, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """``[low, high]`` with each end moved to where the loss is least, the other held."""
    down, up = np.maximum(-histogram.low, 0.0), np.maximum(histogram.high, 0.0)
    low = _cut(histogram, -_best(lambda t: loss(_cut(histogram, -t), high), down, histogram.width))
    high = _cut(histogram, _best(lambda t: loss(low, _cut(histogram, t)), up, histogram.width))
    return low, high


def _cut(histogram: Histogram, end: Floats) -> Floats:
    return np.clip(end, histogram.low, histogram.high)


def _best(loss: Callable[[Floats], Floats], widest: Floats, narrowest: Floats) -> Floats:
    """Coarse steps by a constant factor (an outlier may be orders of magnitude away), then fine ones near the best."""
    narrowest = np.minimum(narrowest, widest)
    ratio = np.where(widest > 0, narrowest / np.where(widest > 0, widest, 1.0), 1.0)
    factor = ratio ** (1 / (_COARSE - 1))
    best = _least(loss, widest * factor ** np.arange(_COARSE)[:, None])
    above, below = np.minimum(best / factor, widest), best * factor
    places = (np.arange(_FINE)[:, None] + 0.5) / _FINE
    return _least(loss, np.concatenate([best[None], above + (below - above) * places]))


def _least(loss: Callable[[Floats], Floats], trials: Floats) -> Floats:
    """Of ``trials`` (trials, channels) the one that loses least, by channel; of equal ones the first."""
    losses = loss(trials[:, 0])[:, None] if trials.shape[1] == 1 else np.stack([loss(trial) for trial in trials])
    best: Floats = np.take_along_axis(trials, np.argmin(losses, axis=0)[None], axis=0)[0]
    return best
