"""Settings of the process and other names that existing programs import from here."""

from neural_compressor.common.utils import (
    DEFAULT_WORKSPACE,
    LazyImport,
    dump_elapsed_time,
    set_random_seed,
    set_resume_from,
    set_tensorboard,
    set_workspace,
)

__all__ = [
    "DEFAULT_WORKSPACE",
    "LazyImport",
    "dump_elapsed_time",
    "set_random_seed",
    "set_resume_from",
    "set_tensorboard",
    "set_workspace",
]
