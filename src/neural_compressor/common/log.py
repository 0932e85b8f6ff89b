"""The log of the toolkit, which is the standard one of the name ``neural_compressor``."""

from __future__ import annotations

import logging

__all__ = ["Logger", "logger"]

logger = logging.getLogger("neural_compressor")


class Logger:
    """The same log by the class that existing programs ask for it.

    >>> Logger().get_logger().name
    'neural_compressor'
    """

    @staticmethod
    def get_logger() -> logging.Logger:
        """The log."""
        return logger
