"""The outcome of a run in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from neural_compressor.errors import EvaluationError, NeuralCompressorError, QuantizationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.result import Measurement, Trial, TuningResult

UNCHECKED = "not checked: no evaluation was given, so the model was quantized once and no accuracy promise was checked"
_SHOWN_REASONS = 5
_SLOWER = 1.05
"""From here on a difference in time is not noise."""


def verdict(best: Trial, baseline: Measurement, criterion: Criterion) -> str:
    """Whether the promise is kept, and by how much or how far off.

    >>> from neural_compressor.schemes import Plan
    >>> miss = Trial(7, "default", Plan({}), Measurement(0.8712), loss=0.032, passed=False, score=1.0, seconds=1.0)
    >>> verdict(miss, Measurement(0.9), Criterion())
    'promise not met: best loses 3.2% where 1.0% is allowed (trial 7)'
    """
    reference = baseline.accuracy
    lost = _change(best.loss, reference, criterion)
    allowed = criterion.amount(criterion.tolerable_loss, reference)
    note = "; absolute, since the baseline is 0" if _switched(reference, criterion) else ""
    if not best.passed:
        return f"promise not met: best {lost} where {allowed} is allowed (trial {best.number}{note})"
    gains = _gains(best.measurement, baseline)
    return f"promise met: trial {best.number} {lost} where {allowed} is allowed{note}{gains}"


def slower_note(result: TuningResult) -> str:
    """A sentence on a model that takes longer than the float one, with what is known of the cause; empty for others."""
    measured = result.best.measurement if result.best is not None else None
    before = result.baseline.latency_ms if result.baseline is not None else None
    after = measured.latency_ms if measured is not None else None
    if not before or not after or after < before * _SLOWER:
        return ""
    simulated = sum(op.simulated for op in result.ops)
    cause = "integer kernels do not pay at these shapes"
    if simulated:
        cause = f"{simulated} of its {len(result.ops)} ops are simulated"
    return f"on this machine the quantized model takes {after / before:.2f} times as long as the float one: {cause}"


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


def _change(loss: float, reference: float | None, criterion: Criterion) -> str:
    """'loses 1.2%', with as many digits as it takes to tell the loss from what is allowed."""
    for digits in range(2, 9):
        text = criterion.amount(abs(loss), reference, digits)
        if text != criterion.amount(criterion.tolerable_loss, reference, digits) or loss == criterion.tolerable_loss:
            break
    return f"{'gains' if loss < 0 else 'loses'} {text}"


def _gains(measured: Measurement | None, baseline: Measurement) -> str:
    if measured is None:
        return ""
    parts = []
    if measured.size_bytes and baseline.size_bytes:
        parts.append(_ratio(baseline.size_bytes / measured.size_bytes, "smaller", "larger"))
    if measured.latency_ms and baseline.latency_ms:
        parts.append(_ratio(baseline.latency_ms / measured.latency_ms, "faster", "slower"))
    return f"; {', '.join(parts)}" if parts else ""


def _ratio(ratio: float, better: str, worse: str) -> str:
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"
