"""Where a result is put: links are followed, and nothing but a regular file or a folder is ever replaced."""

from __future__ import annotations

import os
from pathlib import Path

from neural_compressor.errors import WorkspaceError


def output_file(path: str | Path) -> Path:
    """The file to write for ``path``: what a link leads to, so that the link stays one.

    A folder, a device, a pipe or a socket there is an error: putting a file in its place would destroy it.

    >>> output_file("model.onnx").name
    'model.onnx'
    """
    found = _target(Path(path))
    if found.is_dir():
        raise WorkspaceError(f"{path} is a folder; give the path of the file to write")
    if found.exists() and not found.is_file():
        raise WorkspaceError(f"{path} is no regular file but a device, a pipe or a socket; give the path of a file")
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
