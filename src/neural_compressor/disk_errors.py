"""Files that cannot be written: an error that says which, why, and that nothing was lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neural_compressor.errors import NeuralCompressorError, WorkspaceError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def write_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """What keeps ``path`` from being written, ``needed`` bytes long, becomes a :class:`WorkspaceError`.

    For writers that leave what was at ``path`` alone until the new is complete.
    """
    try:
        yield
    except NeuralCompressorError:
        raise
    except Exception as error:
        full = is_full(error)
        if not full and not isinstance(error, OSError):
            raise
        size = f", where {needed:,} bytes are to be written" if full and needed else ""
        advice = ". Free some space, or choose another place" if full else ""
        raise WorkspaceError(
            f"{path} cannot be written: {reason(error)}{size}; nothing that was there has been changed{advice}"
        ) from (None if full else error)


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says that a disk is full; libraries that write for themselves say it only in words."""
    return getattr(error, "errno", None) in _FULL or "no space left" in str(error).lower()


def reason(error: BaseException) -> str:
    """Why a file could not be written, in one line."""
    if not is_full(error):
        return str(error)
    return getattr(error, "strerror", None) or "No space left on device"
