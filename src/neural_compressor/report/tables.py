"""The tables of the report: trials and ops, each sortable by its headings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.report.differences import differences
from neural_compressor.report.op_groups import INTEGERS, SIMULATED, op_groups, runs_as
from neural_compressor.report.quantities import (
    MISSING,
    escaped,
    is_best,
    printable,
    shown_accuracy_of,
    shown_latency,
    shown_loss_of,
    shown_ratio,
    shown_size,
    trial_verdict,
)
from neural_compressor.tuning.result import Measurement, Trial, TuningResult, size_ratio, speed_up

_MIX_COLOURS = 6
_NAMED = 4
_SIMULATED_HINT = (
    "A simulated op stores its weights in low bits and computes in float: its size and accuracy are true, its speed is "
    "not. To gain speed, do what the reason says, take 8 bits, which kernels exist for, or keep the op in float by a "
    "rule with its name."
)
_TIME_HINT = (
    "Time: the part of a run on one batch that goes to the op, timed one by one, in this model and in the float one."
)


def trial_table(result: TuningResult) -> str:
    """The baseline, then one row a trial."""
    headings = ["#n", "stage", "verdict", "#accuracy", "#loss", "#size", "#smaller", "#latency", "#speed-up"]
    headings += ["#output SQNR", "#time", "what it changed"]
    rows = [_baseline_row(result.baseline)] if result.baseline else []
    changed = zip(result.trials, differences(result.trials), strict=True)
    table = _table("trials", headings, rows + [_trial_row(trial, result, change) for trial, change in changed])
    return f'<section class="panel scroll">{table}</section>{_accuracy_hint(result)}{_latency_hint(result)}'


def _baseline_row(baseline: Measurement) -> str:
    cells = [
        _number("", 0),
        "<td>baseline</td><td></td>",
        *_measured(baseline, None, MISSING, math.nan),
        _number("", None),
        "<td></td>",
    ]
    return f'<tr class="base">{"".join(cells)}</tr>'


def _trial_row(trial: Trial, result: TuningResult, change: str) -> str:
    word = trial_verdict(trial)
    best = ' <span class="badge best">best</span>' if is_best(trial, result) else ""
    chosen = ' class="best"' if best else ""
    source = ' <span class="badge">journal</span>' if trial.resumed else ""
    stage = escaped(trial.stage)
    error = f'<div class="bad">{escaped(trial.error)}</div>' if trial.error else ""
    cells = [
        _number(str(trial.number), trial.number),
        f'<td class="stage" data-value="{stage}">{stage}{source}{error}</td>',
        f'<td class="nowrap"><span class="badge {word}">{word}</span>{best}</td>',
        *_measured(trial.measurement, result.baseline, shown_loss_of(trial, result), trial.loss),
        _number(f"{trial.seconds:.2f} s", trial.seconds),
        f'<td class="changes">{escaped(change)}</td>',
    ]
    return f"<tr{chosen}>{''.join(cells)}</tr>"


def _measured(measured: Measurement | None, baseline: Measurement | None, loss: str, loss_value: float) -> list[str]:
    m = measured or Measurement(None)
    smaller, faster = size_ratio(baseline, measured), speed_up(baseline, measured)
    return [
        _number(shown_accuracy_of(m), m.accuracy),
        _number(loss, loss_value if math.isfinite(loss_value) else None),
        _number(shown_size(m.size_bytes), m.size_bytes),
        _number(shown_ratio(smaller), smaller),
        _number(shown_latency(m.latency_ms) + _spread(m), m.latency_ms),
        _number(shown_ratio(faster), faster),
        _number(_decibel(m.output_sqnr), m.output_sqnr),
    ]


def _spread(measured: Measurement) -> str:
    return "" if measured.latency_spread is None else f" ± {_percent(measured.latency_spread)}"


def _accuracy_hint(result: TuningResult) -> str:
    """How far accuracies may be off by chance, and how that is known, or that it is not."""
    baseline = result.baseline
    if baseline is None or baseline.accuracy is None:
        return ""
    samples = "" if baseline.accuracy_samples is None else f" on {baseline.accuracy_samples} samples"
    if baseline.accuracy_spread is None:
        why = (
            "the evaluation gives one number for the whole model"
            if not samples
            else "the metric tells nothing of samples"
        )
        told = (
            f"Accuracy{samples}: how far it is off by chance is not known, as {why}. With eval_dataloader and a metric "
        )
        return f'<p class="hint">{told}by name it is.</p>'
    told = f"Accuracy{samples}, &plusmn; half of its 95% interval. Losses compare a model with float sample by sample"
    return f'<p class="hint">{told}, and are known better than accuracies.</p>'


def _latency_hint(result: TuningResult) -> str:
    """How the latencies were come by, where that is known."""
    measured = [result.baseline, *(trial.measurement for trial in result.trials)]
    rounds = sorted({m.latency_rounds for m in measured if m is not None and m.latency_rounds is not None})
    if not rounds:
        return ""
    count = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
    clock = "Models on a CPU are timed by the CPU time of one thread, so that a busy machine changes nothing."
    return f'<p class="hint">Latency: the median of {count} rounds, &plusmn; half of its 95% interval. {clock}</p>'


def op_section(result: TuningResult) -> str:
    """How each op of the best model runs; nothing where the adaptor does not tell."""
    if not result.ops:
        return ""
    headings = ["op", "type", "weight", "activation", "mode", "#size", "#weight SQNR", "#output SQNR"]
    timed = any(op.time_share is not None for op in result.ops)
    headings += [*(["#time", "#time in float"] if timed else []), "runs in"]
    table = _table("ops", headings, [_op_row(op, timed) for op in result.ops])
    return (
        '<div class="tools"><h2>Ops of the best model</h2>'
        '<input type="search" id="filter" placeholder="Filter ops" aria-label="Filter ops"></div>'
        f'<section class="panel scroll">{_mix(result.ops)}{_reasons(result.ops)}{table}</section>'
        + (f'<p class="hint">{_TIME_HINT}</p>' if timed else "")
    )


def _op_row(op: OpRecord, timed: bool) -> str:
    how = runs_as(op)
    detail = escaped(op.kernel if how == INTEGERS else op.reason)
    shares = [_number(_percent(share), share) for share in (op.time_share, op.float_time_share)]
    cells = [
        f'<td class="opname">{escaped(op.name)}</td>',
        *(f"<td>{escaped(word)}</td>" for word in (op.op_type, op.precision, op.activation, op.mode)),
        _number(shown_size(op.size_bytes or None), op.size_bytes or None),
        _number(_decibel(op.weight_sqnr), op.weight_sqnr),
        _number(_decibel(op.output_sqnr), op.output_sqnr),
        *(shares if timed else []),
        f'<td class="kernel"><span class="badge {how}">{how}</span><span class="why">{detail}</span></td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _reasons(ops: Sequence[OpRecord]) -> str:
    """What is not computed in integers, a line for each reason."""
    groups = [group for group in op_groups(ops) if group.how != INTEGERS]
    lines = []
    for group in groups:
        more = f" and {len(group.names) - _NAMED} more" if len(group.names) > _NAMED else ""
        names = escaped(", ".join(group.names[:_NAMED]) + more)
        lines.append(
            f'<li><span class="badge {group.how}">{group.how}</span>{len(group.names)} {escaped(group.op_type)}: '
            f'{escaped(group.why)} <span class="why">({names})</span></li>'
        )
    hint = f'<p class="hint">{_SIMULATED_HINT}</p>' if any(group.how == SIMULATED for group in groups) else ""
    return f'<div class="bar"><ul class="groups">{"".join(lines)}</ul>{hint}</div>' if lines else ""


def _mix(ops: Sequence[OpRecord]) -> str:
    """A bar of how many ops run in which precision."""
    counts = Counter(printable(op.precision) for op in ops).most_common()
    parts, words = [], []
    for index, (name, count) in enumerate(counts):
        colour = f"mix-{min(index, _MIX_COLOURS - 1)}"
        parts.append(f'<span class="{colour}" style="width:{100 * count / len(ops):.2f}%"></span>')
        words.append(f'<li><span class="dot {colour}"></span>{escape(name)}: {count} op{"s" * (count > 1)}</li>')
    return f'<div class="bar"><div class="mix">{"".join(parts)}</div><ul class="legend">{"".join(words)}</ul></div>'


def _decibel(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f} dB" if math.isfinite(value) else "exact" if value > 0 else "lost"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}%"


def _number(text: str, value: float | None) -> str:
    """A right-aligned cell that sorts by ``value``; a missing one stays at the end."""
    key = "" if value is None or math.isnan(value) else "1e999" if value == math.inf else repr(value)
    return f'<td class="number" data-value="{key}">{escape(text)}</td>'


def _table(identifier: str, headings: Sequence[str], rows: Sequence[str]) -> str:
    """A table; a heading that starts with ``#`` is one of numbers."""
    cells = []
    for heading in headings:
        style = ' class="number"' if heading.startswith("#") else ""
        name = "#" if heading == "#n" else heading.removeprefix("#")
        cells.append(f'<th scope="col"{style}><button type="button">{escape(name)}</button></th>')
    return f'<table id="{identifier}"><thead><tr>{"".join(cells)}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
