"""The workspace folder: checked before any long work, with the best model kept whole at every moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neural_compressor.errors import WorkspaceError
from neural_compressor.paths import is_full, path_of, write_text_atomically
from neural_compressor.tuning.result import Trial

_PROBE_BYTES = 64 * 1024


def slug(title: str) -> str:
    """``title`` as a name for files and studies.

    >>> slug("My model: v2/final")
    'My-model-v2-final'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", title).strip("-.")[:60] or "model"


def writable_folder(path: str | Path) -> Path:
    """The folder ``path``, made where missing; an error where nothing can be written there."""
    folder = path_of(path, "workspace").expanduser().absolute()
    with workspace_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * _PROBE_BYTES)
            probe.flush()
            os.fsync(probe.fileno())
    return folder


@contextmanager
def workspace_errors(folder: Path, file: str | Path = "") -> Iterator[None]:
    """Operating-system errors inside become a :class:`WorkspaceError` that names folder, ``file`` and the way out."""
    try:
        yield
    except OSError as error:
        place = file or error.filename
        raise WorkspaceError(
            f"cannot write to the workspace {folder}: {error.strerror or error}{f' ({place})' if place else ''}. "
            "What was written before is kept. "
            "Free some space or make it writable and run the same command again, or choose another workspace"
        ) from (None if is_full(error) else error)


class BestModelFolder:
    """``best_model`` and ``best_plan.json`` of one study: replaced only once the new ones are complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "best_model"
        self.plan = folder / "best_plan.json"
        self._previous = folder / "best_model.previous"
        with workspace_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._recover()

    def _recover(self) -> None:
        """Clear up after :meth:`replace`, also a killed one: the old model stays until the new one is in its place."""
        if self._previous.exists():
            if self.model.exists():
                shutil.rmtree(self._previous)
            else:
                self._previous.rename(self.model)
        for leftover in self.folder.glob("best_model.new-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def holds(self, trial: Trial) -> bool:
        """Whether the model of ``trial`` is what is on disk."""
        if not (self.model.exists() and self.plan.is_file()):
            return False
        try:
            return bool(json.loads(self.plan.read_text(encoding="utf-8"))["digest"] == trial.plan.digest)
        except (ValueError, KeyError, TypeError):
            return False

    def replace(self, trial: Trial, save: Callable[[Path], None]) -> None:
        """Put the model that ``save(folder)`` writes, and the plan of its ``trial``, in the place of the old ones."""
        with workspace_errors(self.folder):
            scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix="best_model.new-"))
            try:
                try:
                    save(scratch / "model")
                except WorkspaceError as error:
                    kept = "; the one there stays" if self.model.exists() else ""
                    raise WorkspaceError(
                        f"the best model so far cannot be kept in {self.model}{kept}: {error}"
                    ) from None
                # the plan is the seal: while it is away nobody takes the folder for the model of a known plan
                self.plan.unlink(missing_ok=True)
                if self.model.exists():
                    self.model.rename(self._previous)
                (scratch / "model").rename(self.model)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                self._recover()
            record = {**trial.to_dict(), "plan": json.loads(trial.plan.to_json())}
            write_text_atomically(self.plan, json.dumps(record, indent=2) + "\n")
