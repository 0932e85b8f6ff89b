"""The quantized model against the float one in speed: which is faster, and what is said of it.

Differences within the noise of the measurement are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.tuning.objective import Scoring, time_noise
from neural_compressor.tuning.result import Measurement, Trial, TuningResult

_NAMED_TYPES = 3


def beats_float(best: Trial, baseline: Measurement, scoring: Scoring) -> bool | None:
    """Whether a model that keeps the promise does better than the float one; None where speed is no objective or was not
    measured, or the promise is not kept.

    It does not where it is slower, whatever else it has to offer, nor where by all objectives it scores no more than float.
    """
    if "performance" not in scoring.weights or not best.passed or _slowdown(best.measurement, baseline) is None:
        return None
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
        how = f"takes {_slowdown(best.measurement, baseline):.2f} times as long"
    else:
        how = "takes as long, within the noise of the measurement"
    return f"{what}: trial {best.number} {how} ({_cause(ops)})"


def slower_note(result: TuningResult) -> str:
    """A sentence on a model that takes longer than the float one, with what is known of the cause; empty for others, and
    where the verdict has it."""
    measured = result.best.measurement if result.best is not None else None
    if result.beats_float is False or not _is_slower(measured, result.baseline):
        return ""
    told = f"takes {_slowdown(measured, result.baseline):.2f} times as long as the float one"
    return f"on this machine the quantized model {told}: {_cause(result.ops)}"


def speed_gain(measured: Measurement | None, baseline: Measurement) -> str:
    """'1.50x faster', '2.00x slower' or 'as fast'; empty where it was not measured."""
    slowdown = _slowdown(measured, baseline)
    if slowdown is None:
        return ""
    differs = _is_slower(measured, baseline) or _is_faster(measured, baseline)
    return times(1 / slowdown, "faster", "slower") if differs else "as fast"


def size_gain(measured: Measurement | None, baseline: Measurement) -> str:
    """'4.00x smaller' or '2.00x larger'; empty where it was not measured."""
    before, after = (m.size_bytes if m is not None else None for m in (baseline, measured))
    return times(before / after, "smaller", "larger") if before and after else ""


def times(ratio: float, better: str, worse: str) -> str:
    """
    >>> times(4.0, "smaller", "larger"), times(0.5, "smaller", "larger")
    ('4.00x smaller', '2.00x larger')
    """
    return f"{ratio:.2f}x {better}" if ratio >= 1 else f"{1 / ratio:.2f}x {worse}"


def _slowdown(measured: Measurement | None, baseline: Measurement | None) -> float | None:
    before, after = (m.latency_ms if m is not None else None for m in (baseline, measured))
    return after / before if before and after else None


def _is_slower(measured: Measurement | None, baseline: Measurement | None) -> bool:
    slowdown = _slowdown(measured, baseline)
    return measured is not None and slowdown is not None and slowdown > 1 + time_noise(measured)


def _is_faster(measured: Measurement | None, baseline: Measurement | None) -> bool:
    slowdown = _slowdown(measured, baseline)
    return measured is not None and slowdown is not None and 1 / slowdown > 1 + time_noise(measured)


def _cause(ops: Sequence[OpRecord]) -> str:
    """Which ops do not compute in integers; where all do, that they gain nothing by it."""
    simulated = [op.op_type for op in ops if op.simulated]
    floats = [op.op_type for op in ops if op.mode == "float"]
    parts = [
        f"{len(kinds)} of its {len(ops)} ops {what} ({_counted(kinds)})"
        for kinds, what in ((simulated, "are simulated"), (floats, "stay in float"))
        if kinds
    ]
    return ", ".join(parts) or "integer kernels do not pay at these shapes"


def _counted(kinds: Sequence[str]) -> str:
    found = Counter(kinds).most_common()
    more = [f"{sum(count for _, count in found[_NAMED_TYPES:])} others"] if len(found) > _NAMED_TYPES else []
    return ", ".join([*(f"{count} {kind}" for kind, count in found[:_NAMED_TYPES]), *more])
