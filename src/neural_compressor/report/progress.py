"""A tuning run on the terminal while it goes on."""

from __future__ import annotations

import math
import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from neural_compressor.report.quantities import (
    printable,
    shown_accuracy,
    shown_latency,
    shown_ratio,
    shown_size,
    size_ratio,
    speed_up,
    trial_verdict,
)
from neural_compressor.tuning.result import Measurement, Trial

_PLAIN_WIDTH = 120


def make_console(stderr: bool = False) -> Console:
    """A console on the terminal, or one that is wide enough for a table where output goes to a file or a CI log."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _PLAIN_WIDTH)


class TuningProgress:
    """Shows a run while it goes on: a bar on a terminal, a line for each step elsewhere, nothing when ``quiet``.

    Pass it to ``tune(progress=...)`` and use it as a context manager.
    """

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
        """The float model is being measured."""
        self._show("measuring the baseline")

    def baseline_done(self, measurement: Measurement) -> None:
        """The float model was measured."""
        self._baseline = measurement
        self._line(f"baseline: {self._measured(measurement)}")

    def trial_start(self, number: int, stage: str) -> None:
        """A trial begins."""
        self._show(f"trial {number}: {printable(stage)}")

    def trial_done(self, trial: Trial) -> None:
        """A trial is in the journal."""
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
        """The user stopped the run; ``message`` says what is kept and how to go on."""
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
