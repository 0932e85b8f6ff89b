"""The journal: an Optuna study that holds every trial from the moment it is done."""

from __future__ import annotations

import logging
import re
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.errors import WorkspaceError
from neural_compressor.paths import path_of
from neural_compressor.schemes import Plan
from neural_compressor.tuning.criterion import Budget
from neural_compressor.tuning.fingerprint import fingerprint
from neural_compressor.tuning.journal_file import FileLock, open_journal_file
from neural_compressor.tuning.result import Measurement
from neural_compressor.tuning.workspace import slug, workspace_errors

if TYPE_CHECKING:
    import optuna

FILE_NAME = "journal.log"
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+]*://")


@dataclass(frozen=True)
class TrialRecord:
    """What the journal keeps of a trial's outcome. ``loss`` is None where the trial failed, and ``error`` says why."""

    stage: str
    measurement: Measurement | None
    loss: float | None
    passed: bool
    score: float
    seconds: float
    error: str = ""
    noise: float = 0.0
    loss_spread: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "measurement": self.measurement.to_dict() if self.measurement else None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialRecord:
        """Read what :meth:`to_dict` writes."""
        measured = data["measurement"]
        return cls(**{**data, "measurement": Measurement.from_dict(measured) if measured else None})


class Journal:
    """The trials of one tuning job, found again by the digest of their plan.

    A job is known by its ``inputs``. Its last study is gone on with where that was not finished, or ended with a smaller
    ``budget`` than this; with ``resume`` False and otherwise a new study begins. Use as a context manager: the job is
    locked against a second process meanwhile. ``notes`` says what a user may not have expected.
    """

    def __init__(
        self,
        workspace: Path,
        title: str,
        inputs: Mapping[str, str],
        storage: str | Path | None = None,
        resume: bool = True,
        budget: Budget | None = None,
    ) -> None:
        self.workspace = workspace
        self.budget = budget or Budget()
        self.notes: list[str] = []
        self._inputs = dict(inputs)
        self._base = base = f"{slug(title)}-{fingerprint(inputs)}"
        self._title = slug(title)
        if storage is not None:
            path_of(storage, "storage")
        self.storage = str(storage) if storage is not None else str(workspace / FILE_NAME)
        self._shared = bool(_URL.match(self.storage))
        self._worker = f"{socket.gethostname()}:{workspace}"
        self._lock = FileLock(workspace / f".{base}.lock")
        self._claim(base)
        try:
            with self._writing():
                self._backend = self._open_storage()
                self._study = self._open_study(resume)
                self.entries = self._read_entries()
        except BaseException:
            self._lock.release()
            raise
        self.resumed = bool(self.entries)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def name(self) -> str:
        """The name of the study."""
        return str(self._study.study_name)

    @property
    def address(self) -> str:
        """Where the journal is, without a password."""
        return _masked(self.storage)

    # -- the study -------------------------------------------------------------------------------------------------

    @property
    def baseline(self) -> Measurement | None:
        """What was measured of the float model, once :meth:`record_baseline` was called in this or an earlier run."""
        stored = self._study.user_attrs.get("baseline")
        return Measurement.from_dict(stored) if stored else None

    def record_baseline(self, measurement: Measurement) -> None:
        """Keep the measurement of the float model."""
        with self._writing():
            self._study.set_user_attr("baseline", measurement.to_dict())

    def finish(self, verdict: str) -> None:
        """Close the study: the next run of the same job begins a new one, unless it has a larger budget."""
        with self._writing():
            self._study.set_user_attr("verdict", verdict)
            self._study.set_user_attr("budget", asdict(self.budget))
            self._study.set_user_attr("finished", True)

    def renew(self) -> None:
        """Leave the study as it is and begin another one, without trials."""
        with self._writing():
            self._study.set_user_attr("finished", True)
            self._study = self._new_study(self._runs() + 1)
        self.entries, self.resumed = {}, False

    # -- the trials ------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> optuna.trial.Trial:
        """Announce that ``plan`` is being tried."""
        with self._writing():
            trial = self._study.ask()
            if self._shared:
                trial.set_user_attr("worker", self._worker)
            trial.set_user_attr("plan", plan.to_json())
        return trial

    def record(self, trial: optuna.trial.Trial, plan: Plan, entry: TrialRecord) -> None:
        """Commit the outcome of a trial that was begun."""
        from optuna.trial import TrialState

        with self._writing():
            trial.set_user_attr("outcome", entry.to_dict())
            if entry.loss is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, entry.loss)
        self.entries[plan.digest] = entry

    def abandon(self, trial: optuna.trial.Trial) -> None:
        """Close a trial that was interrupted: it has no outcome, and a later run does it again."""
        from optuna.trial import TrialState

        with self._writing():
            self._study.tell(trial, state=TrialState.FAIL)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _claim(self, base: str) -> None:
        with workspace_errors(self.workspace):
            if not self._lock.acquire(wait=False):
                raise WorkspaceError(
                    f"process {self._lock.holder()} is running the same tuning job ({base}) in {self.workspace}; "
                    "wait for it to end, or give this run another workspace"
                )
            self._lock.sign()

    def _open_study(self, resume: bool) -> optuna.Study:
        import optuna

        runs = self._runs()
        if runs:
            last = optuna.load_study(study_name=_run_name(self._base, runs), storage=self._backend)
            if resume and self._has_more_to_do(last):
                if last.user_attrs.get("finished"):
                    last.set_user_attr("finished", False)
                self._reap(last)
                return last
            last.set_user_attr("finished", True)
        elif resume:
            self._explain_the_new_study()
        return self._new_study(runs + 1)

    def _runs(self) -> int:
        """How many studies of this job there are."""
        import optuna

        taken = set(optuna.get_all_study_names(self._backend))
        return next(run for run in count() if _run_name(self._base, run + 1) not in taken)

    def _new_study(self, run: int) -> optuna.Study:
        import optuna

        name = _run_name(self._base, run)
        study = optuna.create_study(study_name=name, storage=self._backend, direction="minimize")
        study.set_user_attr("inputs", self._inputs)
        return study

    def _has_more_to_do(self, study: optuna.Study) -> bool:
        attrs = study.user_attrs
        if not attrs.get("finished"):
            return True
        return "budget" in attrs and self.budget.exceeds(Budget(**attrs["budget"]))

    def _explain_the_new_study(self) -> None:
        """Note what keeps the last unfinished study of the same title from being gone on with."""
        import optuna

        for study in reversed(optuna.get_all_study_summaries(self._backend)):
            theirs = study.user_attrs.get("inputs")
            if not isinstance(theirs, dict) or study.user_attrs.get("finished") or not study.n_trials:
                continue
            if re.fullmatch(rf"{re.escape(self._title)}-[0-9a-f]{{12}}(-\d+)?", study.study_name):
                changed = [name for name, value in self._inputs.items() if theirs.get(name) != value]
                self.notes.append(
                    f"study {study.study_name} was not finished, and is not gone on with, as this run differs in its "
                    f"{', '.join(changed)}"
                )
                return

    def _open_storage(self) -> Any:
        if not self._shared:
            return open_journal_file(Path(self.storage).expanduser().absolute())
        import optuna

        return optuna.storages.get_storage(self.storage)

    def _reap(self, study: optuna.Study) -> None:
        """Close the trial a killed run left half-done; in shared storage only our own, as another's may be alive."""
        from optuna.trial import TrialState

        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not self._shared or trial.user_attrs.get("worker") == self._worker:
                loss = trial.user_attrs.get("outcome", {}).get("loss")
                study.tell(trial.number, loss, state=TrialState.FAIL if loss is None else TrialState.COMPLETE)

    def _read_entries(self) -> dict[str, TrialRecord]:
        entries: dict[str, TrialRecord] = {}
        for trial in self._study.get_trials(deepcopy=False):
            attrs = trial.user_attrs
            if trial.state.is_finished() and "outcome" in attrs and "plan" in attrs:
                try:
                    entries[Plan.from_json(attrs["plan"]).digest] = TrialRecord.from_dict(attrs["outcome"])
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise WorkspaceError(
                        f"trial {trial.number} of study {self._study.study_name} in {self.address} cannot be read "
                        f"({type(error).__name__}: {error}); start afresh with resume=False or another workspace"
                    ) from error
        return entries

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep Optuna quiet, and say what a failing storage means to the user."""
        import optuna

        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(logging.ERROR)
        try:
            with warnings.catch_warnings(), workspace_errors(self.workspace, "" if self._shared else self.storage):
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                yield
        except (WorkspaceError, KeyboardInterrupt):
            raise
        except Exception as error:
            if not (self._shared and _is_storage_error(error)):
                raise
            raise WorkspaceError(
                f"the tuning journal at {self.address} cannot be used: {error}. "
                "Check the address and that the server runs; trials recorded so far are kept there"
            ) from error
        finally:
            optuna.logging.set_verbosity(level)


def _run_name(base: str, run: int) -> str:
    return base if run == 1 else f"{base}-{run}"


def _masked(storage: str) -> str:
    """The storage address without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", storage)


def _is_storage_error(error: Exception) -> bool:
    """Whether Optuna, SQLAlchemy or a database driver says that the storage is not usable."""
    from optuna.exceptions import StorageInternalError

    modules = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, (StorageInternalError, ImportError)) or bool(
        modules & {"sqlalchemy", "psycopg", "psycopg2"}
    )
