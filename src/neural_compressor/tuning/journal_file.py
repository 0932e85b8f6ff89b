"""The journal file: opened only when whole, with what a killed writer left repaired."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from neural_compressor.errors import WorkspaceError
from neural_compressor.tuning.file_lock import FileLock

if TYPE_CHECKING:
    from optuna.storages import JournalStorage


def open_journal_file(path: Path) -> JournalStorage:
    """An Optuna storage on the journal file ``path``, which is made or repaired as needed."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    # Optuna's own locks are files: one left by a killed process is waited for, without end where the path is relative
    lock = FileLock(path.with_name(path.name + ".flock"))
    lock.acquire()
    try:
        repair(path)
    finally:
        lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise _corrupt(path, f"its records do not fit together ({type(error).__name__}: {error})") from error


def repair(path: Path) -> Path | None:
    """Move a torn last line of the journal aside and return the file it went to; None where there was none.

    A writer killed in mid-line leaves a tail without an end. Optuna reads past it, but the next record would be glued
    to it and both lost. Broken lines before the last were not left by a killed writer and are an error.
    """
    if not path.exists():
        return None
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            whole = _is_record(line)
            if whole and line.endswith(b"\n"):
                offset += len(line)
                continue
            if file.read(1):
                raise _corrupt(path, f"line {number} is not a journal record")
            if whole:
                _append_newline(path)
                return None
            return _cut_tail(path, offset, line)
    return None


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and "op_code" in record


def _append_newline(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")
        os.fsync(file.fileno())


def _cut_tail(path: Path, offset: int, tail: bytes) -> Path:
    aside = next(p for n in range(1, 10**6) if not (p := path.with_name(f"{path.name}.torn-{n}")).exists())
    with aside.open("xb") as file:
        file.write(tail)
        os.fsync(file.fileno())
    os.truncate(path, offset)
    return aside


def _corrupt(path: Path, what: str) -> WorkspaceError:
    return WorkspaceError(
        f"the tuning journal {path} is damaged: {what}. Nothing was changed. "
        f"Move the file away (or choose another workspace) to start afresh, or restore it from a copy to go on"
    )
