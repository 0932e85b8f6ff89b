"""What a tuning run tells while it goes on, and what is done with its result: the protocol, and the one that is silent."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from neural_compressor.tuning.result import Measurement, Trial, TuningResult

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor


class Progress(Protocol):
    """Callbacks of a tuning run, in the order in which they come."""

    def baseline_start(self) -> None: ...

    def baseline_done(self, measurement: Measurement) -> None: ...

    def trial_start(self, number: int, stage: str) -> None: ...

    def trial_done(self, trial: Trial) -> None: ...

    def interrupted(self, message: str) -> None: ...


class Reporter(Protocol):
    """Shows a run and keeps its report. ``neural_compressor.report.run_report.RunReport`` is the usual one."""

    def running(self, title: str, trials: int) -> AbstractContextManager[Progress]:
        """What is told of a run of so many trials at most; open while it goes on."""

    def keep(self, result: TuningResult, adaptor: Adaptor, conf: Any, workspace: Path) -> None:
        """Write the report of a run in which all is measured. A :class:`WorkspaceError` costs the report, not the run."""

    def show(self, result: TuningResult) -> None:
        """Show the result of a run that has ended."""


class Silent:
    """Says and keeps nothing."""

    def running(self, title: str, trials: int) -> AbstractContextManager[Progress]:
        """Tell this object, which says nothing."""
        return nullcontext(self)

    def keep(self, result: TuningResult, adaptor: Adaptor, conf: Any, workspace: Path) -> None:
        """Nothing to keep."""

    def show(self, result: TuningResult) -> None:
        """Nothing to show."""

    def baseline_start(self) -> None:
        """Nothing to say."""

    def baseline_done(self, measurement: Measurement) -> None:
        """Nothing to say."""

    def trial_start(self, number: int, stage: str) -> None:
        """Nothing to say."""

    def trial_done(self, trial: Trial) -> None:
        """Nothing to say."""

    def interrupted(self, message: str) -> None:
        """Nothing to say."""
