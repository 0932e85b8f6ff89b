"""A finished tuning run on the terminal: a table and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.report.op_groups import FLOAT, INTEGERS, SIMULATED, op_groups
from neural_compressor.report.progress import TuningProgress, make_console
from neural_compressor.report.quantities import (
    MISSING,
    is_best,
    printable,
    shortened,
    shown_accuracy,
    shown_latency,
    shown_loss,
    shown_ratio,
    shown_size,
    size_ratio,
    speed_up,
    trial_verdict,
)
from neural_compressor.tuning.result import Measurement, Trial, TuningResult

__all__ = ["TuningProgress", "make_console", "op_lines", "print_ops", "print_result", "trial_table", "verdict_panel"]

_SHOWN_TRIALS = 24
_STAGE_LENGTH = 60
_SHOWN_REASONS = 4
_HOW = {INTEGERS: "green", SIMULATED: "yellow", FLOAT: "default"}
_WIDE = 100
_STYLES = {"pass": "green", "miss": "yellow", "failed": "red"}


def print_result(result: TuningResult, console: Console | None = None) -> None:
    """Print the trial table and the verdict."""
    console = console or make_console()
    table = trial_table(result, wide=console.width >= _WIDE)
    console.print(Group(table, *_failures(result), *op_lines(result.ops), verdict_panel(result)))


def trial_table(result: TuningResult, wide: bool = True) -> Table:
    """Baseline and trials, one a row, the best with a star; the middle of a long list is left out, never the best."""
    title = Text(f"Tuning of {printable(result.title)}", style="bold")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("stage", overflow="fold")
    for name in ("accuracy", "loss", "size", *(["smaller"] if wide else []), "latency", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    if result.baseline is not None:
        cells = _cells(result.baseline, result.baseline, MISSING, wide)
        table.add_row("", "baseline", *cells, MISSING, end_section=True)
    for item in _collapsed(result):
        if isinstance(item, int):
            table.add_row("", Text(f"... {item} more trials ...", style="dim"))
        else:
            table.add_row(*_row(item, result, wide))
    return table


def op_lines(ops: Sequence[OpRecord]) -> list[Text]:
    """What computes in integers, what is simulated and what stays in float: a line for each op type and reason."""
    groups, lines = op_groups(ops), []
    for how, style in _HOW.items():
        found = [group for group in groups if group.how == how]
        for group in found[:_SHOWN_REASONS]:
            line = Text(f"{how:>9}: ", style=style).append(f"{len(group.names)} {printable(group.op_type)}", "default")
            lines.append(line.append(f" ({printable(group.why)})" if group.why else "", style="dim"))
        if more := sum(len(group.names) for group in found[_SHOWN_REASONS:]):
            lines.append(Text(f"{how:>9}: {more} more for other reasons", style=style))
    return lines


def print_ops(ops: Sequence[OpRecord], console: Console | None = None) -> None:
    """Print how the ops of a model run, for the calls that quantize it once; on standard error, as it is no result."""
    (console or make_console(stderr=True)).print(Group(*op_lines(ops)))


def verdict_panel(result: TuningResult) -> Panel:
    """The verdict, with the promise and where things are."""
    style = "green" if result.satisfied else "yellow"
    lines: list[RenderableType] = [Text(printable(result.verdict), style=f"bold {style}")]
    details = {
        "promise": result.criterion if result.criterion != "none" else "",
        "stopped": result.metadata.get("stopped", ""),
        "note": "; ".join(result.metadata.get("notes", ())),
        "model": result.metadata.get("best_model", ""),
        "report": str(result.report or ""),
        "time": f"{result.seconds:.1f} s" if result.seconds else "",
    }
    lines += [Text(f"{name}: {printable(str(value))}", overflow="fold") for name, value in details.items() if value]
    return Panel(Group(*lines), title="Verdict", title_align="left", border_style=style)


def _collapsed(result: TuningResult) -> Iterator[Trial | int]:
    """The trials to show, with the number of those left out where they were."""
    shown: Sequence[Trial] = result.trials
    if len(result.trials) > _SHOWN_TRIALS:
        half = _SHOWN_TRIALS // 2
        keep = {trial.number for trial in (*result.trials[:half], *result.trials[-half:])}
        keep |= {result.best.number} if result.best else set()
        shown = [trial for trial in result.trials if trial.number in keep]
    previous = 0
    for trial in shown:
        if trial.number > previous + 1:
            yield trial.number - previous - 1
        yield trial
        previous = trial.number


def _row(trial: Trial, result: TuningResult, wide: bool) -> list[RenderableType]:
    word = trial_verdict(trial)
    best = is_best(trial, result)
    stage = shortened(printable(trial.stage), _STAGE_LENGTH if wide else _STAGE_LENGTH // 2) + (
        " (journal)" if trial.resumed else ""
    )
    cells = _cells(trial.measurement, result.baseline, shown_loss(trial, result), wide)
    style = ("bold " if best else "") + _STYLES.get(word, "default")
    return [Text(f"{'*' if best else ''}{trial.number}"), Text(stage), *cells, Text(word, style=style)]


def _cells(measured: Measurement | None, baseline: Measurement | None, loss: str, wide: bool) -> list[str]:
    measurement = measured or Measurement(None)
    other = None if measured is baseline else measured  # the baseline is not compared with itself
    return [
        shown_accuracy(measurement.accuracy),
        loss,
        shown_size(measurement.size_bytes),
        *([shown_ratio(size_ratio(baseline, other))] if wide else []),
        shown_latency(measurement.latency_ms),
        shown_ratio(speed_up(baseline, other)),
    ]


def _failures(result: TuningResult) -> list[RenderableType]:
    """Why trials failed, once for each reason."""
    reasons: dict[str, list[int]] = {}
    for trial in result.trials:
        if trial.failed:
            reasons.setdefault(trial.error, []).append(trial.number)
    return [
        Text(f"failed in trial {shortened(', '.join(map(str, numbers)), 40)}: {printable(reason)}")
        for reason, numbers in reasons.items()
    ]
