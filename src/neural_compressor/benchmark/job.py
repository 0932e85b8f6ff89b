"""The job of a benchmark process: a model with its data or a function, handed over in a file.

They are pickled here and read back there, from a file that nobody else can write to: no file of a user is ever unpickled.
What is defined in the user's script is looked up in that script, which is then run once more under another name, as
``multiprocessing`` does; a script that defines none of it is not.
"""

from __future__ import annotations

import pickle
import runpy
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError

_RUN_AGAIN = "__mp_main__"
"""The name that ``multiprocessing`` gives to a script that is run again, too: not the one a script asks for."""


@dataclass(frozen=True)
class Script:
    """What runs as ``__main__``: a module, a file, or neither in an interactive session."""

    module: str | None = None
    file: str | None = None

    @classmethod
    def of_this_process(cls) -> Script:
        """That of the process at hand."""
        main = sys.modules["__main__"]
        name = getattr(getattr(main, "__spec__", None), "name", None)
        file = getattr(main, "__file__", None)
        return cls(name, None if file is None else str(Path(file).absolute()))

    def run_again(self) -> types.ModuleType:
        """The names that it defines, as a module; what stands under ``if __name__ == "__main__"`` does not run."""
        if self.module is not None:
            names = runpy.run_module(self.module, run_name=_RUN_AGAIN, alter_sys=True)
        elif self.file is not None and Path(self.file).is_file():
            names = runpy.run_path(self.file, run_name=_RUN_AGAIN)
        else:
            raise ConfigError(
                "it is defined in an interactive session, which another process has not; put it into a file"
            )
        module = types.ModuleType(_RUN_AGAIN)
        module.__dict__.update(names)
        sys.modules[_RUN_AGAIN] = module
        return module


@dataclass(frozen=True)
class Job:
    """What an instance does."""

    model: Any
    loader: Iterable[Any] | None
    function: Callable[[Any], Any] | None
    info: dict[str, Any]
    warmup: int
    iteration: int

    @property
    def parts(self) -> dict[str, Any]:
        """Its fields by the names that a user knows."""
        known = {"loader": "b_dataloader", "function": "b_func"}
        return {known.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}


def write_job(job: Job, file: Path) -> None:
    """Put ``job`` into a file; a part of it that cannot be is an error that says which."""
    with file.open("wb") as stream:
        for name, part in job.parts.items():
            try:
                pickle.dump(part, stream, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # whatever a user's class raises
                raise ConfigError(
                    f"{name} cannot be handed to another process ({type(error).__name__}: {error}); classes and functions "
                    "have to be defined at the top level of a file, and an ONNX model may be given by its path"
                ) from error


def read_job(file: Path, script: Script) -> Job:
    """What :func:`write_job` wrote."""
    with file.open("rb") as stream:
        return Job(*(_Reader(stream, script).load() for _ in fields(Job)))


class _Reader(pickle.Unpickler):
    def __init__(self, stream: Any, script: Script) -> None:
        super().__init__(stream)
        self._script = script

    def find_class(self, module: str, name: str) -> Any:
        # To import multiprocessing gives that name to the script at hand, which is not the user's.
        if module == "__main__" and sys.modules.get(_RUN_AGAIN) in (None, sys.modules["__main__"]):
            self._script.run_again()
        return super().find_class(_RUN_AGAIN if module == "__main__" else module, name)
