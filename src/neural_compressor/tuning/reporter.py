"""Reporters: told of a tuning run while it goes on, and of its result. Both classes here say and keep nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.tuning.result import Measurement, Trial, TuningResult

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor


class Progress:
    """Callbacks of a tuning run, in the order in which they come."""

    def baseline_start(self) -> None:
        """The float model is being measured."""

    def baseline_done(self, measurement: Measurement) -> None:
        """The float model was measured."""

    def trial_start(self, number: int, stage: str) -> None:
        """A trial begins."""

    def trial_done(self, trial: Trial) -> None:
        """A trial is in the journal."""

    def interrupted(self, message: str) -> None:
        """The user stopped the run; ``message`` says what is kept and how to go on."""


class Reporter:
    """Shows a run and keeps its report. ``neural_compressor.report.run_report.RunReport`` is the usual one."""

    def running(self, title: str, trials: int) -> AbstractContextManager[Progress]:
        """What is told of a run of so many trials at most; open while it goes on."""
        return nullcontext(Progress())

    def keep(self, result: TuningResult, adaptor: Adaptor, conf: Any, workspace: Path) -> None:
        """Write the report of a run in which all is measured. A :class:`WorkspaceError` costs the report, not the run."""

    def show(self, result: TuningResult) -> None:
        """Show the result of a run that has ended."""
