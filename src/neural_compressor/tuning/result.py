"""Results of tuning: measurements, trials, the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.schemes import Plan
from neural_compressor.tuning.spread import Evidence


@dataclass(frozen=True)
class Measurement:
    """What was measured of one model. A value is None where nobody asked for it or it could not be had;
    accuracy is None where there is no evaluation.

    ``accuracy_spread`` is half the width of the accuracy's 95% interval and ``accuracy_samples`` how many samples it was
    found on, where a metric tells (see :mod:`neural_compressor.tuning.spread`). So does ``evidence``, by which models are
    compared, and which is not kept. ``latency_ms`` is a median of ``latency_rounds``, and ``latency_spread`` half the width
    of its interval as a share of it (see :mod:`neural_compressor.tuning.measure`). ``output_sqnr`` is how exactly the model
    gives what the float one does on an example, in dB."""

    accuracy: float | None
    latency_ms: float | None = None
    size_bytes: int | None = None
    footprint_bytes: int | None = None
    output_sqnr: float | None = None
    latency_spread: float | None = None
    latency_rounds: int | None = None
    accuracy_spread: float | None = None
    accuracy_samples: int | None = None
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = asdict(replace(self, evidence=None))
        del found["evidence"]
        return found

    def with_evaluation(self, accuracy: float | None, evidence: Evidence) -> Measurement:
        """The same with what an evaluation says."""
        spread = evidence.half_width()
        return replace(
            self, accuracy=accuracy, accuracy_spread=spread, accuracy_samples=evidence.samples, evidence=evidence
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Read what :meth:`to_dict` writes."""
        return cls(**data)


def size_ratio(baseline: Measurement | None, measured: Measurement | None) -> float | None:
    """How many times smaller ``measured`` is; None where that was not measured."""
    before, after = (m.size_bytes if m is not None else None for m in (baseline, measured))
    return before / after if before and after else None


def speed_up(baseline: Measurement | None, measured: Measurement | None) -> float | None:
    """How many times faster ``measured`` is; None where that was not measured."""
    before, after = (m.latency_ms if m is not None else None for m in (baseline, measured))
    return before / after if before and after else None


@dataclass(frozen=True)
class Trial:
    """One plan that was tried, numbered from 1. ``error`` is filled where quantization or evaluation failed;
    the loss is then infinite. It is NaN where no evaluation was given. ``loss_spread`` is half the width of its 95%
    interval, in the unit of the loss, where the evaluation tells what single samples gave. A score that differs by less
    than ``noise`` is no other score."""

    number: int
    stage: str
    plan: Plan
    measurement: Measurement | None
    loss: float
    passed: bool
    score: float
    seconds: float
    resumed: bool = False
    error: str = ""
    noise: float = 0.0
    loss_spread: float | None = None

    @property
    def failed(self) -> bool:
        """Whether no model came of it."""
        return bool(self.error)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the plan; a loss that is not finite becomes None."""
        return {
            "number": self.number,
            "stage": self.stage,
            "digest": self.plan.digest,
            "measurement": self.measurement.to_dict() if self.measurement else None,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "loss_spread": self.loss_spread,
            "passed": self.passed,
            "score": self.score,
            "noise": self.noise,
            "seconds": self.seconds,
            "resumed": self.resumed,
            "error": self.error,
        }


@dataclass
class TuningResult:
    """The evidence: baseline, trials, best trial, and whether the promise is kept.

    ``met`` is about accuracy alone. ``beats_float`` is about speed where that was asked for: False where the best model is
    not faster than the float one; None where speed is no objective, was not measured, or the promise is not kept anyway.

    ``metadata`` holds what else a report may show: ``study``, ``storage``, ``best_model`` (path of the saved model),
    ``strategy``, ``objective``, ``tolerable_loss``, ``relative`` (whether losses are shares of the baseline),
    ``higher_is_better``, ``promise`` (the accuracy at which the promise just holds), ``stopped`` (why the run ended)
    and ``notes``.
    """

    baseline: Measurement | None
    trials: Sequence[Trial]
    best: Trial | None
    met: bool
    verdict: str
    criterion: str
    ops: Sequence[OpRecord] = ()
    title: str = "model"
    seconds: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)
    report: Path | None = None
    beats_float: bool | None = None

    @property
    def satisfied(self) -> bool:
        """Whether the user has what was asked for: the promise kept, and a faster model where speed was an objective."""
        return self.met and self.beats_float is not False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "met": self.met,
            "beats_float": self.beats_float,
            "criterion": self.criterion,
            "seconds": self.seconds,
            "baseline": self.baseline.to_dict() if self.baseline else None,
            "best": self.best.number if self.best else None,
            "trials": [trial.to_dict() for trial in self.trials],
            "ops": [op.to_dict() for op in self.ops],
            "metadata": self.metadata,
        }
