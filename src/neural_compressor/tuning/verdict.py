"""The outcome of a run in one sentence, and what is said of its speed against the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.errors import EvaluationError, NeuralCompressorError, QuantizationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.objective import Scoring, time_noise
from neural_compressor.tuning.result import Measurement, Trial, TuningResult, size_ratio, speed_up

UNCHECKED = "not checked: no evaluation was given, so the model was quantized once and no accuracy promise was checked"
_SHOWN_REASONS = 5
_DIGITS = range(2, 6)
"""Decimals of a percentage: more of them nobody reads."""
_NAMED_TYPES = 3


def verdict(best: Trial, baseline: Measurement, criterion: Criterion, slow: str = "") -> str:
    """Whether the promise is kept, and by how much or how far off. Of a model that keeps it and is no faster than float,
    where that was asked for, ``slow`` is said first.

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
    size, speed = size_gain(best.measurement, baseline), speed_gain(best.measurement, baseline)
    gains = [size] if slow else [size, speed]
    told = "; ".join(filter(None, [lost, note, ", ".join(filter(None, gains))]))
    return f"{slow}; it {told}" if slow else f"promise met: trial {best.number} {told}"


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


def evaluation_error(trials: Sequence[Trial]) -> str:
    """What the user's evaluation raised in each of ``trials``; empty where one went well or they differ."""
    told = {trial.error for trial in trials}
    error = told.pop() if len(told) == 1 else ""
    return error if error.startswith(EvaluationError.__name__) and " raised " in error else ""


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, ..." if len(numbers) > 5 else shown


def _switched(reference: float | None, criterion: Criterion) -> bool:
    return reference is not None and criterion.relative and not criterion.relates_to(reference)


def _lost(best: Trial, reference: float | None, criterion: Criterion) -> str:
    """'loses 1.2% where 2.0% is allowed', with as many digits as it takes to tell the one from the other, within reason."""
    limit = criterion.tolerable_loss
    allowed = criterion.allowed(reference)
    shown = (criterion.amount(abs(best.loss), reference, digits) for digits in _DIGITS)
    beside = (criterion.amount(abs(limit), reference, digits) for digits in _DIGITS)
    other_side = (best.loss < 0) != (limit < 0)
    text = next((text for text, other in zip(shown, beside, strict=True) if other_side or text != other), None)
    if text is None and not best.passed:
        off = f"a trace ({best.loss - limit:.0e})"
        return (
            f"gains {off} less than the {allowed} asked for"
            if limit < 0
            else f"loses {off} more than the {allowed} allowed"
        )
    nothing = criterion.amount(0.0, reference)
    text = text or allowed
    told = f"{'gains' if best.loss < 0 and text != nothing else 'loses'} {text}{_spread(best, reference, criterion)}"
    promise = f"a gain of {allowed} is asked for" if limit < 0 else f"{allowed} is allowed"
    return f"{told} where {promise}"


def _spread(best: Trial, reference: float | None, criterion: Criterion) -> str:
    if best.loss_spread is None:
        return ""
    noise = " (within the noise)" if abs(best.loss) <= best.loss_spread else ""
    return f" ± {criterion.amount(best.loss_spread, reference)}{noise}"


def undecided(best: Trial | None, baseline: Measurement, criterion: Criterion) -> str:
    """That the evaluation has too few samples to say whether the promise is kept; empty where it says so."""
    if best is None or best.loss_spread is None or abs(best.loss - criterion.tolerable_loss) > best.loss_spread:
        return ""
    samples = "the samples" if baseline.accuracy_samples is None else f"{baseline.accuracy_samples} samples"
    return (
        f"{samples} are too few to be sure that the promise is {'kept' if best.passed else 'not kept'}: the loss is known "
        f"to ± {criterion.amount(best.loss_spread, baseline.accuracy)}"
    )


def beats_float(best: Trial, baseline: Measurement, scoring: Scoring) -> bool | None:
    """Whether a model that keeps the promise does better than the float one; None where speed is no objective or was not
    measured, or the promise is not kept.

    It does not where it is slower, whatever else it has to offer, nor where by all objectives it scores no more than float.
    """
    if "performance" not in scoring.weights or not best.passed or speed_up(baseline, best.measurement) is None:
        return None
    no_larger = (size_ratio(baseline, best.measurement) or 1.0) >= 1
    if no_larger and set(scoring.weights) <= {"performance", "modelsize"} and _is_faster(best.measurement, baseline):
        return True  # in all that counts, however noisy the score is
    return not _is_slower(best.measurement, baseline) and best.score > 1 + best.noise


def not_faster(best: Trial, baseline: Measurement, trials: Sequence[Trial], ops: Sequence[OpRecord]) -> str:
    """That the best model is not faster than float, or not better by all objectives, and why."""
    if _is_faster(best.measurement, baseline):
        gains = ", ".join(filter(None, (speed_gain(best.measurement, baseline), size_gain(best.measurement, baseline))))
        return f"by all objectives together nothing tried is better than float: trial {best.number} is {gains}"
    faster = [trial for trial in trials if _is_faster(trial.measurement, baseline)]
    what = f"nothing tried {'that keeps the promise ' if faster else ''}is faster than float here"
    if any(trial.passed for trial in faster):
        what = "the best by the objectives is not faster than float here"
    if _is_slower(best.measurement, baseline):
        how = f"takes {_times_as_long(best.measurement, baseline)}"
    else:
        how = "takes as long, within the noise of the measurement"
    return f"{what}: trial {best.number} {how} ({_cause(ops)})"


def slower_note(result: TuningResult) -> str:
    """A sentence on a model that takes longer than the float one, with what is known of the cause; empty for others, and
    where the verdict has it."""
    measured = result.best.measurement if result.best is not None else None
    if result.beats_float is False or not _is_slower(measured, result.baseline):
        return ""
    told = f"takes {_times_as_long(measured, result.baseline)} as the float one"
    return f"on this machine the quantized model {told}: {_cause(result.ops)}"


def speed_gain(measured: Measurement | None, baseline: Measurement) -> str:
    """'1.50x faster', '2.00x slower' or 'as fast'; empty where it was not measured."""
    ratio = speed_up(baseline, measured)
    if ratio is None:
        return ""
    differs = _is_slower(measured, baseline) or _is_faster(measured, baseline)
    return times(ratio, "faster", "slower") if differs else "as fast"


def size_gain(measured: Measurement | None, baseline: Measurement) -> str:
    """'4.00x smaller' or '2.00x larger'; empty where it was not measured."""
    ratio = size_ratio(baseline, measured)
    return "" if ratio is None else times(ratio, "smaller", "larger")


def times(ratio: float, better: str, worse: str) -> str:
    """
    >>> times(4.0, "smaller", "larger"), times(0.5, "smaller", "larger")
    ('4.00x smaller', '2.00x larger')
    """
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


def _times_as_long(measured: Measurement | None, baseline: Measurement | None) -> str:
    return f"{1 / (speed_up(baseline, measured) or 1.0):.2f} times as long"


def _is_slower(measured: Measurement | None, baseline: Measurement | None) -> bool:
    ratio = speed_up(baseline, measured)
    return measured is not None and ratio is not None and 1 / ratio > 1 + time_noise(measured)


def _is_faster(measured: Measurement | None, baseline: Measurement | None) -> bool:
    ratio = speed_up(baseline, measured)
    return measured is not None and ratio is not None and ratio > 1 + time_noise(measured)


def _cause(ops: Sequence[OpRecord]) -> str:
    """Which ops do not compute in integers; where all do, that they gain nothing by it."""
    simulated = [op.op_type for op in ops if op.simulated]
    floats: dict[str, list[str]] = {}
    for op in ops:
        if op.mode == "float":
            what = "stay in float" if op.precision == "fp32" else f"compute in {op.precision}"
            floats.setdefault(what, []).append(op.op_type)
    parts = [
        f"{len(kinds)} of its {len(ops)} ops {what} ({_counted(kinds)})"
        for what, kinds in (("are simulated", simulated), *floats.items())
        if kinds
    ]
    return ", ".join(parts) or "integer kernels do not pay at these shapes"


def _counted(kinds: Sequence[str]) -> str:
    found = Counter(kinds).most_common()
    more = [f"{sum(count for _, count in found[_NAMED_TYPES:])} others"] if len(found) > _NAMED_TYPES else []
    return ", ".join([*(f"{count} {kind}" for kind, count in found[:_NAMED_TYPES]), *more])
