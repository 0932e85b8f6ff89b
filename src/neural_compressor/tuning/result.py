"""What tuning returns: measurements, trials, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.schemes import Plan


@dataclass(frozen=True)
class Measurement:
    """What was measured of one model. Latency, size and footprint are None where nobody asked or it could not be had."""

    accuracy: float
    latency_ms: float | None = None
    size_bytes: int | None = None
    footprint_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trial:
    """One plan that was tried. ``error`` is filled where quantization or evaluation failed."""

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


@dataclass
class TuningResult:
    """The evidence: baseline, trials, best trial, and whether the promise is kept."""

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
