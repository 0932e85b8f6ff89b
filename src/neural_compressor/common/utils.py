"""Names that programs written for the 3.x API import from here."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from neural_compressor.common.log import Logger, logger
from neural_compressor.config.process_options import (
    DEFAULT_WORKSPACE,
    set_random_seed,
    set_resume_from,
    set_tensorboard,
    set_workspace,
)

__all__ = [
    "DEFAULT_WORKSPACE",
    "LazyImport",
    "Logger",
    "dump_elapsed_time",
    "logger",
    "set_random_seed",
    "set_resume_from",
    "set_tensorboard",
    "set_workspace",
]

F = TypeVar("F", bound=Callable[..., Any])


class LazyImport:
    """A module that is imported when something of it is used.

    >>> LazyImport("math").floor(2.5)
    2
    """

    def __init__(self, module_name: str) -> None:
        self._module_name = module_name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module_name), name)

    def __repr__(self) -> str:
        return f"LazyImport({self._module_name!r})"


def dump_elapsed_time(customized_msg: str = "") -> Callable[[F], F]:
    """Decorator that writes to the log how long each call took."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            found = function(*args, **kwargs)
            logger.info("%s took %.2f s", customized_msg or function.__qualname__, time.perf_counter() - started)
            return found

        return timed  # type: ignore[return-value]

    return decorate
