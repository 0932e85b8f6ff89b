"""Settings of the process: what runs and configurations take where the call itself says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.validators import Seed, flag
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of

DEFAULT_WORKSPACE = "nc_workspace"


def _folder(value: Any) -> str:
    return str(path_of(value))


def _existing_folder(value: Any) -> str | None:
    if value is None:
        return None
    folder = path_of(value).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}; expected the workspace of an earlier run to go on in")
    return str(folder)


def _no_tensorboard(value: Any) -> bool:
    if flag(value):
        raise ConfigError(
            "got True: the report of a run (report.html in its workspace) has what tuning saw; to write events of one "
            "evaluation, call adaptor.evaluate(..., tensorboard=True)"
        )
    return False


class Options(ConfigModel):
    """Defaults of the process; what a call is given goes before them.

    ``workspace`` is where ``fit`` and ``autotune`` keep journal, best model and report. ``resume_from`` is the workspace of
    an earlier run, in which the next one goes on. ``random_seed`` is the ``seed`` of configurations that are made from
    now on.

    >>> Options().workspace, Options().random_seed
    ('nc_workspace', 42)
    """

    random_seed: Seed = 42
    workspace: Annotated[str, BeforeValidator(_folder)] = DEFAULT_WORKSPACE
    resume_from: Annotated[str | None, BeforeValidator(_existing_folder)] = None
    tensorboard: Annotated[bool, BeforeValidator(_no_tensorboard)] = False

    def folder(self, given: Any = None) -> Path:
        """The workspace of a run: the one it was ``given``, else the one to go on in, else the usual one."""
        if given is not None:
            return path_of(given, "workspace")
        return Path(self.resume_from or self.workspace)


options = Options()


def usual_seed() -> int:
    """The seed of a configuration that is given none."""
    return options.random_seed


def set_random_seed(seed: int) -> None:
    """Have configurations that are made from now on take this ``seed``."""
    options.random_seed = seed


def set_workspace(workspace: Any) -> None:
    """Have runs keep what they write in this folder."""
    options.workspace = workspace


def set_resume_from(resume_from: Any) -> None:
    """Go on in the workspace of an earlier run; the folder must exist. None ends that."""
    options.resume_from = resume_from


def set_tensorboard(tensorboard: bool) -> None:
    """Event files of whole runs are not written: False is taken, and True is an error that says what there is instead."""
    options.tensorboard = tensorboard
