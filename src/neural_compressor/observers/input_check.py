"""Inputs of calibration data that tell nothing about the values a model will see."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from neural_compressor.errors import CalibrationError
from neural_compressor.schemes.arrays import Array

_LOG = logging.getLogger("neural_compressor")
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class CalibrationInputs:
    """The range of each float input of calibration data, to warn of those with one value or none to speak of.

    >>> seen = CalibrationInputs()
    >>> seen.note("x", np.zeros((2, 3), np.float32))
    >>> seen.complaints()
    ["input 'x' is 0 in every sample"]
    """

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float, int]] = {}
        self._told: set[str] = set()

    def note(self, name: str, values: Array, place: str = "") -> None:
        """Take the float values of an input into account; NaN, which no model is to see, is an error."""
        count = int(np.prod(values.shape))
        if count == 0:
            return
        low, high, before = self._ranges.get(name, (np.inf, -np.inf, 0))
        least, largest = float(values.min()), float(values.max())
        if np.isnan(least):  # as NumPy and torch have it where one value is NaN; Inf may be a mask
            raise CalibrationError(
                f"calibration data: input {name!r} holds NaN{place}; look for bad values in the data"
            )
        self._ranges[name] = (min(least, low), max(largest, high), before + count)

    def complaints(self) -> list[str]:
        """What is wrong with the inputs, one sentence each."""
        found = ((name, _complaint(low, high, count)) for name, (low, high, count) in self._ranges.items())
        return [f"input {name!r} {complaint}" for name, complaint in found if complaint]

    def warn(self) -> None:
        """Log the complaints, each once."""
        for complaint in self.complaints():
            if complaint not in self._told:
                self._told.add(complaint)
                _LOG.warning(
                    "calibration data: %s; ranges taken from it fit no other data. Give samples of what the model will see",
                    complaint,
                )


def _complaint(low: float, high: float, count: int) -> str:
    if low == high == 0:
        return "is 0 in every sample"
    if max(abs(low), abs(high)) < _SMALLEST_NORMAL:
        return f"has no value larger than {max(abs(low), abs(high)):.3g}, which float32 holds as a denormal number"
    return f"has the one value {low:g} in every sample" if low == high and count > 1 else ""


def is_float_array(value: Any) -> bool:
    """Whether ``value`` is a NumPy array of floats."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
