"""The promise of a run, and its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neural_compressor.errors import ConfigError

_SLACK = 1e-9
"""What a loss may be above the limit and still keep the promise: a mean of the same values summed up in another order is off
by a few units in the last place, which is far below this. Nothing else is forgiven."""


@dataclass(frozen=True)
class Criterion:
    """How much accuracy may be lost, as a share of the baseline (``relative``) or in the metric's own unit.

    Below 0 it is how much has to be gained.

    A loss that is above what is allowed by at most 1e-9, in the same unit, counts as what is allowed: so much is rounding of
    the evaluation itself.

    A relative loss has no meaning where the baseline is zero; the plain difference is taken there, and
    :meth:`describe` and the verdict say so.

    >>> one_percent = Criterion(tolerable_loss=0.01)
    >>> one_percent.holds(baseline=0.90, value=0.895)
    True
    >>> Criterion(higher_is_better=False, relative=False, tolerable_loss=0.5).loss(baseline=10.0, value=11.0)
    1.0
    """

    higher_is_better: bool = True
    relative: bool = True
    tolerable_loss: float = 0.01

    def __post_init__(self) -> None:
        if not math.isfinite(self.tolerable_loss):
            raise ConfigError(f"tolerable_loss must be a finite number, got {self.tolerable_loss!r}")

    @classmethod
    def from_config(cls, config: Any) -> Criterion:
        """The criterion that an ``AccuracyCriterion`` describes."""
        kind = config.criterion
        if kind not in ("relative", "absolute"):
            raise ConfigError(f"accuracy criterion {kind!r} is unknown; known: relative, absolute")
        return cls(bool(config.higher_is_better), kind == "relative", float(config.tolerable_loss))

    def relates_to(self, baseline: float) -> bool:
        """Whether losses are shares of this ``baseline``, and not plain differences."""
        return self.relative and baseline != 0

    def loss(self, baseline: float, value: float) -> float:
        """How much worse ``value`` is than ``baseline``; negative where it is better."""
        worse = baseline - value if self.higher_is_better else value - baseline
        return worse / abs(baseline) if self.relates_to(baseline) else worse

    def allows(self, loss: float) -> bool:
        """Whether a model with this ``loss`` keeps the promise."""
        return loss <= self.tolerable_loss + _SLACK

    def holds(self, baseline: float, value: float) -> bool:
        """Whether a model that reaches ``value`` keeps the promise."""
        return self.allows(self.loss(baseline, value))

    def limit(self, baseline: float) -> float:
        """The value at which the promise just holds."""
        allowed = self.tolerable_loss * (abs(baseline) if self.relates_to(baseline) else 1.0)
        return baseline - allowed if self.higher_is_better else baseline + allowed

    def amount(self, loss: float, baseline: float | None = None, digits: int = 2) -> str:
        """A loss as a person reads it.

        >>> Criterion().amount(0.032), Criterion(relative=False).amount(0.032)
        ('3.2%', '0.032')
        """
        share = self.relative if baseline is None else self.relates_to(baseline)
        if not share:
            return f"{loss:.{digits + 2}g}"
        percent = f"{100 * loss:.{digits}f}".rstrip("0")
        return f"{percent}0%" if percent.endswith(".") else f"{percent}%"

    def allowed(self, baseline: float | None = None) -> str:
        """The loss that is allowed, or the gain that is asked for, with as many digits as it takes not to be nothing.

        >>> Criterion(tolerable_loss=1e-6).allowed()
        '0.0001%'
        """
        digits = next((d for d in range(2, 15) if round(100 * self.tolerable_loss, d)), 2)
        return self.amount(abs(self.tolerable_loss), baseline, digits)

    def describe(self, baseline: float | None = None) -> str:
        """The promise in words.

        >>> Criterion().describe()
        'at most 1.0% lost (relative, higher is better)'
        """
        direction = "higher is better" if self.higher_is_better else "lower is better"
        kind = "relative" if self.relative else "absolute"
        if baseline is not None and self.relative and not self.relates_to(baseline):
            kind = "absolute, since the baseline is 0 and a share of 0 means nothing"
        what = (
            f"at least {self.allowed(baseline)} gained"
            if self.tolerable_loss < 0
            else f"at most {self.allowed(baseline)} lost"
        )
        return f"{what} ({kind}, {direction})"


@dataclass(frozen=True)
class Budget:
    """When to stop: ``timeout`` seconds (0: at the first model that keeps the promise) or ``max_trials``."""

    timeout: float = 0.0
    max_trials: int = 100

    def __post_init__(self) -> None:
        if self.timeout < 0 or math.isnan(self.timeout):
            raise ConfigError(f"timeout must be at least 0 seconds (0: stop at the first pass), got {self.timeout!r}")
        if self.max_trials < 1:
            raise ConfigError(f"max_trials must be at least 1, got {self.max_trials!r}")

    @classmethod
    def from_config(cls, config: Any) -> Budget:
        """The budget that a ``TuningCriterion`` describes."""
        return cls(float(config.timeout), int(config.max_trials))

    def exceeds(self, other: Budget) -> bool:
        """Whether a run that ended with ``other`` may have more to do."""
        return self.max_trials > other.max_trials or self.timeout > other.timeout

    def end(self, trials: int, spent_s: float, passed: bool) -> str:
        """Why to stop after a trial that ``passed`` or did not; empty while there is reason to go on."""
        if self.timeout == 0 and passed:
            return "the promise is kept"
        if trials >= self.max_trials:
            return f"max_trials={self.max_trials} reached"
        if 0 < self.timeout <= spent_s:
            return f"timeout={self.timeout:g} s reached"
        return ""
