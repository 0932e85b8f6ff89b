"""The outcome of a run in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from neural_compressor.errors import EvaluationError, NeuralCompressorError, QuantizationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.float_race import speed_gain, times
from neural_compressor.tuning.result import Measurement, Trial

UNCHECKED = "not checked: no evaluation was given, so the model was quantized once and no accuracy promise was checked"
_SHOWN_REASONS = 5
_DIGITS = range(2, 6)
"""Decimals of a percentage: more of them nobody reads."""


def verdict(best: Trial, baseline: Measurement, criterion: Criterion, not_faster: str = "") -> str:
    """Whether the promise is kept, and by how much or how far off. Of a model that keeps it and is no faster than float,
    where that was asked for, ``not_faster`` is said first.

    >>> from neural_compressor.schemes import Plan
    >>> miss = Trial(7, "default", Plan({}), Measurement(0.8712), loss=0.032, passed=False, score=1.0, seconds=1.0)
    >>> verdict(miss, Measurement(0.9), Criterion())
    'promise not met: best loses 3.2% where 1.0% is allowed (trial 7)'
    """
    reference = baseline.accuracy
    lost = _lost(best, reference, criterion)
    note = "absolute, since the baseline is 0" if _switched(reference, criterion) else ""
    if not best.passed:
        return f"promise not met: best {lost} ({'; '.join(filter(None, [f'trial {best.number}', note]))})"
    size, speed = _size_gain(best.measurement, baseline), speed_gain(best.measurement, baseline)
    gains = [size] if not_faster else [size, speed]
    told = "; ".join(filter(None, [lost, note, ", ".join(filter(None, gains))]))
    return f"{not_faster}; it {told}" if not_faster else f"promise met: trial {best.number} {told}"


def all_failed(trials: Sequence[Trial]) -> NeuralCompressorError:
    """The error of a run in which no trial gave a model."""
    if not trials:
        return QuantizationError(
            "the strategy proposed no plan, so nothing was quantized; "
            "check that the rules leave at least one op to quantize"
        )
    reasons: dict[str, list[int]] = {}
    for trial in trials:
        reasons.setdefault(trial.error, []).append(trial.number)
    lines = [f"  trial {_numbers(numbers)}: {reason}" for reason, numbers in reasons.items()]
    if len(lines) > _SHOWN_REASONS:
        lines = [*lines[:_SHOWN_REASONS], f"  ... and {len(lines) - _SHOWN_REASONS} more reasons, kept in the journal"]
    kind = EvaluationError if all(r.startswith(EvaluationError.__name__) for r in reasons) else QuantizationError
    count = "the only trial" if len(trials) == 1 else f"each of the {len(trials)} trials"
    return kind("\n".join([f"{count} failed, so there is no model to return:", *lines]))


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, ..." if len(numbers) > 5 else shown


def _switched(reference: float | None, criterion: Criterion) -> bool:
    return reference is not None and criterion.relative and not criterion.relates_to(reference)


def _lost(best: Trial, reference: float | None, criterion: Criterion) -> str:
    """'loses 1.2% where 2.0% is allowed', with as many digits as it takes to tell the one from the other, within reason."""
    limit = criterion.tolerable_loss
    allowed = criterion.amount(limit, reference)
    shown = (criterion.amount(abs(best.loss), reference, digits) for digits in _DIGITS)
    beside = (criterion.amount(limit, reference, digits) for digits in _DIGITS)
    text = next((text for text, other in zip(shown, beside, strict=True) if text != other), None)
    if text is None and not best.passed:
        return f"loses a trace ({best.loss - limit:.0e}) more than the {allowed} allowed"
    nothing = criterion.amount(0.0, reference)
    text = text or allowed
    return f"{'gains' if best.loss < 0 and text != nothing else 'loses'} {text} where {allowed} is allowed"


def _size_gain(measured: Measurement | None, baseline: Measurement) -> str:
    if measured is None or not measured.size_bytes or not baseline.size_bytes:
        return ""
    return times(baseline.size_bytes / measured.size_bytes, "smaller", "larger")
