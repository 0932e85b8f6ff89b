"""The log, settings, bases of configurations and of tuning, by the names of the 3.x API."""

from neural_compressor.common.log import Logger, logger
from neural_compressor.common.utils import dump_elapsed_time
from neural_compressor.config.process_options import (
    options,
    set_random_seed,
    set_resume_from,
    set_tensorboard,
    set_workspace,
)

__all__ = [
    "Logger",
    "dump_elapsed_time",
    "logger",
    "options",
    "set_random_seed",
    "set_resume_from",
    "set_tensorboard",
    "set_workspace",
]
