"""A tuning run on the terminal: a bar or lines while it goes on, then a table and a verdict."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.report.op_groups import FLOAT, INTEGERS, SIMULATED, op_groups
from neural_compressor.report.quantities import (
    MISSING,
    is_best,
    printable,
    shortened,
    shown_accuracy,
    shown_latency,
    shown_loss,
    shown_loss_of,
    shown_ratio,
    shown_size,
    trial_verdict,
)
from neural_compressor.tuning.reporter import Progress
from neural_compressor.tuning.result import Measurement, Trial, TuningResult, size_ratio, speed_up

__all__ = ["TuningProgress", "make_console", "op_lines", "print_ops", "print_result", "trial_table", "verdict_panel"]

_SHOWN_TRIALS = 24
_STAGE_LENGTH = 60
_SHOWN_REASONS = 4
_HOW = {INTEGERS: "green", SIMULATED: "yellow", FLOAT: "default"}
_WIDE = 100
_STYLES = {"pass": "green", "miss": "yellow", "failed": "red"}
_PLAIN_WIDTH = 120


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
            others = "on other kernels" if how == INTEGERS else "for other reasons"
            lines.append(Text(f"{how:>9}: {more} more {others}", style=style))
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
    loss = (shown_loss_of if wide else shown_loss)(trial, result)
    cells = _cells(trial.measurement, result.baseline, loss, wide)
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


def make_console(stderr: bool = False) -> Console:
    """A console on the terminal, or one that is wide enough for a table where output goes to a file or a CI log."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _PLAIN_WIDTH)


class TuningProgress(Progress):
    """Shows a run while it goes on: a bar on a terminal, a line for each step elsewhere, nothing when ``quiet``."""

    def __init__(
        self,
        max_trials: int | None = None,
        console: Console | None = None,
        *,
        quiet: bool = False,
        title: str = "model",
    ) -> None:
        self._console = console or make_console(stderr=True)
        self._quiet = quiet
        self._title = printable(title)
        self._total = max_trials
        self._baseline: Measurement | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> TuningProgress:
        if not self._quiet and self._console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(f"{self._title}: starting", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def baseline_start(self) -> None:
        self._show("measuring the baseline")

    def baseline_done(self, measurement: Measurement) -> None:
        self._baseline = measurement
        self._line(f"baseline: {self._measured(measurement)}")

    def trial_start(self, number: int, stage: str) -> None:
        self._show(f"trial {number}: {printable(stage)}")

    def trial_done(self, trial: Trial) -> None:
        if trial.failed:
            outcome = f"failed: {printable(trial.error)}"
        else:
            kept = "" if math.isnan(trial.loss) else f", {trial_verdict(trial)}"
            outcome = f"{self._measured(trial.measurement)}{kept}"
        source = " (from the journal)" if trial.resumed else ""
        self._line(f"trial {trial.number} [{printable(trial.stage)}]{source}: {outcome}")
        if self._bar is not None:
            self._bar.update(self._task, completed=trial.number)

    def interrupted(self, message: str) -> None:
        if not self._quiet:
            self._console.print(Text(printable(message), style="yellow"), soft_wrap=True)

    def _show(self, activity: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._title}: {activity}")

    def _line(self, text: str) -> None:
        """One line, where there is no bar to show the same."""
        if not self._quiet and self._bar is None:
            self._console.print(Text(text), soft_wrap=True)

    def _measured(self, measurement: Measurement | None) -> str:
        if measurement is None:
            return "not measured"
        smaller, faster = size_ratio(self._baseline, measurement), speed_up(self._baseline, measurement)
        parts = [
            "" if measurement.accuracy is None else f"accuracy {shown_accuracy(measurement.accuracy)}",
            "" if measurement.size_bytes is None else shown_size(measurement.size_bytes),
            "" if smaller is None or measurement is self._baseline else f"{shown_ratio(smaller)} smaller",
            "" if measurement.latency_ms is None else shown_latency(measurement.latency_ms),
            "" if faster is None or measurement is self._baseline else f"speed-up {shown_ratio(faster)}",
        ]
        return ", ".join(part for part in parts if part)
