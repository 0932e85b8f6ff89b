"""Validators for the numbers a configuration field may hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neural_compressor.errors import ConfigError


def whole_between(smallest: int, largest: int, what: str = "") -> Callable[[Any], int]:
    """A validator that admits whole numbers from ``smallest`` to ``largest``.

    >>> whole_between(1, 8, "bits")(99)
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: got 99, expected 1 to 8 bits
    """

    def check(value: Any) -> int:
        if is_whole(value) and smallest <= value <= largest:
            return int(value)
        raise ConfigError(f"got {value!r}, expected {smallest} to {largest} {what}".rstrip())

    return check


def number_between(smallest: float, largest: float) -> Callable[[Any], float]:
    """A validator that admits numbers from ``smallest`` to ``largest``."""

    def check(value: Any) -> float:
        if is_number(value) and smallest <= value <= largest:
            return float(value)
        raise ConfigError(f"got {value!r}, expected a number from {smallest:g} to {largest:g}")

    return check


def rate(value: Any) -> float:
    """Validate the step of a training, as a share of the range of what is trained.

    >>> rate(0.005)
    0.005
    """
    if is_number(value) and 0 < value <= 1:
        return float(value)
    raise ConfigError(f"got {value!r}, expected a number above 0, and at most 1")


def positive(value: Any) -> float:
    """Validate a finite number above zero.

    >>> positive(0.005)
    0.005
    """
    if is_number(value) and value > 0:
        return float(value)
    raise ConfigError(f"got {value!r}, expected a finite number > 0")


def group_size(value: Any) -> int:
    """Validate how many weights share a scale: a positive number, or -1 for all of an output channel."""
    if is_whole(value) and (value == -1 or value > 0):
        return int(value)
    raise ConfigError(f"got {value!r}, expected a positive group size, or -1 for one scale per channel")


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
