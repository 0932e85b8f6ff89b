"""Errors of arrays and schemes, told of the node they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError


@contextmanager
def at_node(*names: str | None) -> Iterator[None]:
    """Errors raised inside say which nodes were at work."""
    try:
        yield
    except (QuantizationError, CalibrationError, ConfigError) as error:
        where = ", ".join(repr(name) for name in names)
        raise type(error)(f"{'node' if len(names) == 1 else 'nodes'} {where}: {error}") from error
