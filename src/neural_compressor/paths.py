"""Paths that a user gives, checked before anything is read or written there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError


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
