"""The journal file: opened only when whole, with what a killed writer left repaired."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neural_compressor.errors import WorkspaceError

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


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, wait: bool) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


class FileLock:
    """Exclusive lock on ``path``, with the ``acquire`` and ``release`` that an Optuna journal calls.

    The file stays behind, empty or with the number of the last process that held it; its presence means nothing.

    >>> import tempfile
    >>> lock = FileLock(Path(tempfile.mkdtemp()) / "lock")
    >>> lock.acquire(), FileLock(lock.path).acquire(wait=False)
    (True, False)
    >>> lock.release()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock; without ``wait`` False says that another process holds it."""
        self.release()  # an interrupt between taking the lock and using it must not make us wait for ourselves
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, wait)
        except OSError as error:
            os.close(descriptor)
            if wait or not isinstance(error, (BlockingIOError, PermissionError)):
                raise
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def sign(self) -> None:
        """Leave this process's number in the file, for whoever finds it locked."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def holder(self) -> str:
        """What the holder signed with, or a question mark."""
        return self.path.read_text().strip() or "?"
