"""Confidence intervals of accuracies and losses, from the influence of single samples.

A metric over n samples has for each an influence: by how much the result is what it is for that sample, so that the squares
of all add up to the variance of the result. Of a mean ``r`` over counts it is ``(total - r * count) / sum(counts)``. Two
models that were evaluated on the same samples are compared sample by sample: what both find hard cancels out, and the
difference is known far better than either accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from neural_compressor.tuning.criterion import Criterion
    from neural_compressor.tuning.result import Measurement

Influences = npt.NDArray[np.float64]
_TWO_SIDED_95 = 1.96


@dataclass(frozen=True)
class Evidence:
    """What a metric knows of the samples that its result is of; nothing where it keeps no more than the result.

    ``influences`` may be of batches, where a metric gives no more than one number for each. ``step`` is the least that one
    sample changes the result where samples are right or wrong: it stands for one more sample on which models differ, as
    none among few does not mean that none ever will (Agresti and Min, Biometrics 61, 2005).

    >>> Evidence(4, np.array([0.125, 0.125, -0.125, -0.125])).half_width()  # doctest: +ELLIPSIS
    0.565...
    """

    samples: int | None = None
    influences: Influences | None = None
    step: float = 0.0

    def half_width(self) -> float | None:
        """Half the width of the 95% interval of the result; None where that cannot be told."""
        return None if self.influences is None else _half_width(self.influences, self.step)


def ratio_influences(totals: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Influences:
    """Of ``sum(totals) / sum(counts)``, which may be a mean of samples that count differently.

    >>> ratio_influences(np.array([1.0, 0.0]), np.array([1.0, 1.0])).tolist()
    [0.25, -0.25]
    """
    whole = float(counts.sum())
    found: Influences = (totals - totals.sum() / whole * counts) / whole
    return found


def loss_spread(criterion: Criterion, baseline: Measurement, measured: Measurement) -> float | None:
    """Half the width of the 95% interval of a loss, in the unit of the criterion; None where that cannot be told.

    Where samples come in another order for each model, they are compared as strangers, and it comes out too wide.
    """
    before, after = baseline.evidence, measured.evidence
    if before is None or after is None or baseline.accuracy is None or measured.accuracy is None:
        return None
    if before.influences is None or after.influences is None or len(before.influences) != len(after.influences):
        return None
    # A relative loss is 1 - after / before: a baseline that is off by chance moves it too.
    share = criterion.relates_to(baseline.accuracy)
    weight, unit = (measured.accuracy / baseline.accuracy, abs(baseline.accuracy)) if share else (1.0, 1.0)
    width = _half_width(after.influences - weight * before.influences, max(before.step, after.step))
    return None if width is None else width / unit


def _half_width(influences: Influences, step: float) -> float | None:
    count = len(influences)
    if count < 2:
        return None
    variance = float((influences**2).sum()) * count / (count - 1) + step**2
    return _TWO_SIDED_95 * math.sqrt(variance)
