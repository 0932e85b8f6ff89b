"""What tuning prefers among the models that keep the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.result import Measurement, Trial

OBJECTIVES = ("performance", "accuracy", "modelsize", "footprint")
_COST_FIELD = {"performance": "latency_ms", "modelsize": "size_bytes", "footprint": "footprint_bytes"}


@dataclass(frozen=True)
class Objective:
    """Weights of what a model is scored by. A score is relative to the baseline: 1.0 is the baseline, higher is better.

    >>> halved = Measurement(accuracy=0.9, latency_ms=5.0, size_bytes=250)
    >>> Objective({"performance": 1.0}).score(Measurement(0.9, 10.0, 1000), halved, Criterion())
    2.0
    """

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError(f"no tuning objective given; known: {', '.join(OBJECTIVES)}")
        for name, weight in self.weights.items():
            if name not in OBJECTIVES:
                raise ConfigError(f"unknown tuning objective {name!r}; {close_matches(str(name), OBJECTIVES)}")
            if not math.isfinite(weight) or weight < 0:
                raise ConfigError(f"the weight of objective {name!r} must be at least 0, got {weight!r}")
        if sum(self.weights.values()) <= 0:
            raise ConfigError("the weights of the tuning objectives are all 0; give at least one a positive weight")

    @classmethod
    def from_config(cls, spec: Any) -> Objective:
        """Read a name, a list of names, or ``{'objective': [...], 'weight': [...], 'higher_is_better': [...]}``.

        >>> Objective.from_config(["performance", "accuracy"]).weights
        {'performance': 0.5, 'accuracy': 0.5}
        """
        if not isinstance(spec, Mapping):
            names = _listed(spec)
            return cls({name: 1 / len(names) for name in names})
        unknown = set(spec) - {"objective", "weight", "higher_is_better"}
        if unknown:
            raise ConfigError(
                f"unknown fields {sorted(unknown)} of an objective; known: objective, weight, higher_is_better"
            )
        names = _listed(spec.get("objective", ()))
        weights = _parallel(spec, "weight", names, default=1 / max(len(names), 1))
        for name, higher in zip(names, _parallel(spec, "higher_is_better", names, default=None), strict=True):
            # latency, size and footprint are costs: a wish for more of them is a misunderstanding, not a preference
            if name in _COST_FIELD and higher:
                raise ConfigError(
                    f"objective {name!r} is measured as {_COST_FIELD[name]}, where lower is better; "
                    "set its higher_is_better to False or leave it out"
                )
        return cls({name: float(weight) for name, weight in zip(names, weights, strict=True)})

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

    def unmeasured(self, measured: Measurement) -> list[str]:
        """The objectives that ``measured`` says nothing about."""
        fields = {**_COST_FIELD, "accuracy": "accuracy"}
        return [name for name in self.weights if getattr(measured, fields[name]) is None]


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The passing trial with the highest score (then the lower loss, then the earlier);
    where none passes the one with the lowest loss. Failed trials never count."""
    return min((trial for trial in trials if not trial.failed), key=_rank, default=None)


def _rank(trial: Trial) -> tuple[bool, float, float, int]:
    if trial.passed:
        return (False, -trial.score, trial.loss, trial.number)
    return (True, trial.loss, -trial.score, trial.number)


def _listed(spec: Any) -> list[str]:
    names = [spec] if isinstance(spec, str) else list(spec)
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise ConfigError(f"objective {sorted(duplicates)[0]!r} is given twice; name each once and use weights")
    return names


def _parallel(spec: Mapping[str, Any], field: str, names: list[str], default: Any) -> list[Any]:
    values = spec.get(field)
    if values is None:
        return [default] * len(names)
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != len(names):
        raise ConfigError(f"{field} has {len(values)} values for {len(names)} objectives; give one for each of {names}")
    return values
