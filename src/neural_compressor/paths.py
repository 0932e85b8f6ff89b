"""Paths: those a user gives, checked; where a result is put; and what keeps a file from being written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError, NeuralCompressorError, WorkspaceError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def path_of(value: Any, what: str = "") -> Path:
    """The path ``value``; what is no path is an error that calls it ``what``.

    >>> path_of(5, "workspace")
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: workspace: got 5, expected a path: a string or a pathlib.Path
    """
    where = f"{what}: " if what else ""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{where}got {value!r}, expected a path: a string or a pathlib.Path")
    if not text or "\0" in text:
        raise ConfigError(f"{where}got {text!r}, expected a path: not empty and without NUL characters")
    return Path(text)


def output_file(path: str | Path) -> Path:
    """The file to write for ``path``: what a link leads to, so that the link stays one.

    A folder, a device, a pipe, a socket or a write-protected file there is an error: putting a file in its place would
    destroy it.

    >>> output_file("model.onnx").name
    'model.onnx'
    """
    found = _target(Path(path))
    if found.is_dir():
        raise WorkspaceError(f"{path} is a folder; give the path of the file to write")
    if found.exists() and not found.is_file():
        raise WorkspaceError(f"{path} is no regular file but a device, a pipe or a socket; give the path of a file")
    if found.exists() and not found.stat().st_mode & 0o222:
        # To put another file in its place needs the right to write to the folder alone.
        raise WorkspaceError(f"{path} is there and nobody may write to it; make it writable, or give another path")
    return found


def output_folder(path: str | Path) -> Path:
    """The folder to write for ``path``: what a link leads to, so that the link stays one."""
    return _target(Path(path))


def _target(path: Path) -> Path:
    if not path.is_symlink():
        return path
    found = Path(os.path.realpath(path))
    if found.is_symlink():  # as it is where links lead in a circle
        raise WorkspaceError(f"{path} is a link that leads nowhere; remove it, or give another path")
    return found


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


def check_writable(path: Path) -> None:
    """Refuse a ``path`` at which nothing can be written, before work whose result goes there; nothing is left behind."""
    found = output_folder(path).absolute().parent
    while not found.exists():
        found = found.parent
    with write_errors(path), tempfile.TemporaryDirectory(dir=found):
        pass


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that ``path`` holds either the old content or all of the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_full(error: BaseException) -> bool:
    """Whether ``error`` says that a disk is full; libraries that write for themselves say it only in words."""
    return getattr(error, "errno", None) in _FULL or "no space left" in str(error).lower()


def reason(error: BaseException) -> str:
    """Why a file could not be written, in one line."""
    if not is_full(error):
        return str(error)
    return getattr(error, "strerror", None) or "No space left on device"


MORE_SPACE = "free some space there, or set TMPDIR to a folder that has more"


def raise_if_full(folder: Path, needed: int) -> None:
    """Say so where ``needed`` bytes do not fit into the temporary ``folder``: libraries that write there do not."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WorkspaceError(
            f"the temporary folder {tempfile.gettempdir()} is full: the model takes {needed:,} bytes there "
            f"and {free:,} are free; {MORE_SPACE}"
        ) from None
