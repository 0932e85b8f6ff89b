"""A lock between processes that the kernel lets go when its holder dies, kill -9 included."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
