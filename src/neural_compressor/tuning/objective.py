"""Scores by which tuning chooses among the models that keep the promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.config.criteria import objectives
from neural_compressor.errors import ConfigError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.measure import NOISE
from neural_compressor.tuning.result import Measurement, Trial

_COST_FIELD = {"performance": "latency_ms", "modelsize": "size_bytes", "footprint": "footprint_bytes"}


@dataclass(frozen=True)
class Scoring:
    """Weights of what a model is scored by. A score is relative to the baseline: 1.0 is the baseline, higher is better.

    >>> halved = Measurement(accuracy=0.9, latency_ms=5.0, size_bytes=250)
    >>> Scoring({"performance": 1.0}).score(Measurement(0.9, 10.0, 1000), halved, Criterion())
    2.0
    """

    weights: Mapping[str, float]

    @classmethod
    def from_config(cls, spec: Any, criterion: Criterion) -> Scoring:
        """The scoring that the ``objective`` of a ``TuningCriterion`` describes, in any of its forms.

        >>> Scoring.from_config(["performance", "accuracy"], Criterion()).weights
        {'performance': 1.0, 'accuracy': 1.0}
        """
        found = objectives(spec)
        for objective in found:
            if objective.name == "accuracy" and criterion.higher_is_better and not objective.higher_is_better:
                raise ConfigError(
                    "objective 'accuracy' says that lower is better, and the accuracy criterion the opposite; "
                    "set AccuracyCriterion(higher_is_better=False)"
                )
        return cls({objective.name: objective.weight for objective in found})

    def component(self, name: str, baseline: Measurement, measured: Measurement, criterion: Criterion) -> float | None:
        """One part of the score, or None where it was not measured."""
        if name == "accuracy":
            if baseline.accuracy is None or measured.accuracy is None:
                return None
            return 1.0 - criterion.loss(baseline.accuracy, measured.accuracy)
        before, after = (getattr(m, _COST_FIELD[name]) for m in (baseline, measured))
        if before is None or after is None:
            return None
        # one byte or nanosecond stands for nothing, so that a cost of zero stays comparable
        floor = 1e-6 if name == "performance" else 1.0
        return float(max(before, floor) / max(after, floor))

    def score(self, baseline: Measurement, measured: Measurement, criterion: Criterion) -> float:
        """The weighted score of ``measured``; what could not be measured counts as no change."""
        total = sum(self.weights.values())
        parts = {name: self.component(name, baseline, measured, criterion) for name in self.weights}
        return sum(self.weights[name] * (1.0 if part is None else part) for name, part in parts.items()) / total

    def noise(self, baseline: Measurement, measured: Measurement, criterion: Criterion) -> float:
        """How far the score of ``measured`` may be off, as latency has a spread. Sizes and accuracies have none."""
        speed_up = self.component("performance", baseline, measured, criterion)
        if "performance" not in self.weights or speed_up is None:
            return 0.0
        return self.weights["performance"] * speed_up * time_noise(measured) / sum(self.weights.values())

    def unmeasured(self, measured: Measurement) -> list[str]:
        """The objectives that ``measured`` says nothing about."""
        fields = {**_COST_FIELD, "accuracy": "accuracy"}
        return [name for name in self.weights if getattr(measured, fields[name]) is None]


def time_noise(measured: Measurement) -> float:
    """The share of a latency by which it may be off."""
    return max(measured.latency_spread or 0.0, NOISE)


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The best of :func:`finalists`; where no trial passes the one with the lowest loss. Failed trials never count."""
    found = [trial for trial in trials if not trial.failed]
    if tied := finalists(found):
        return tied[0]
    return min(found, key=lambda trial: (trial.loss, -trial.score, trial.number), default=None)


def finalists(trials: Iterable[Trial], joint: Callable[[list[float]], float] = max) -> list[Trial]:
    """Of the passing trials those whose score is the highest within the noise: the smallest first, then the lower loss, then
    the earlier. The noise of two scores is the larger one, or what ``joint`` makes of both."""
    passing = [trial for trial in trials if trial.passed and not trial.failed]
    top = max(passing, key=lambda trial: trial.score, default=None)
    tied = [trial for trial in passing if top and top.score - trial.score <= joint([top.noise, trial.noise])]
    return sorted(tied, key=lambda trial: (_size(trial), trial.loss, trial.number))


def _size(trial: Trial) -> float:
    size = trial.measurement.size_bytes if trial.measurement else None
    return math.inf if size is None else size
