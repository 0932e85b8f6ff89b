"""Calibration data: one sample after the other, as inputs by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np

from neural_compressor.adaptor.user_code import user_errors
from neural_compressor.errors import CalibrationError
from neural_compressor.observers.input_check import CalibrationInputs, is_float_array


class CalibrationDataReader(ABC):
    """What a user derives from: ``get_next`` gives inputs by name and None at the end, ``rewind`` starts anew."""

    @abstractmethod
    def get_next(self) -> Mapping[str, Any] | None:
        """The inputs of the next sample, or None where there are no more."""

    def rewind(self) -> None:
        """Start anew; needed where data is gone over several times."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while (sample := self.get_next()) is not None:
            yield sample


class Samples:
    """A reader gone over any number of times, each time from its start.

    Anything with ``get_next`` serves. One that cannot be rewound serves once.
    """

    def __init__(self, reader: Any, limit: int | None = None) -> None:
        if not callable(getattr(reader, "get_next", None)):
            raise CalibrationError(
                f"got calibration data of type {type(reader).__name__}, expected a CalibrationDataReader (get_next, rewind)"
            )
        self.reader = reader
        self.limit = limit
        self.passes = 0
        #: How many samples the longest pass gave.
        self.count = 0
        self._ahead: list[Any] = []
        self._inputs = CalibrationInputs()
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the first sample's inputs; it is given out all the same when the data is gone over."""
        if self._shapes is None and not self.passes and not self._ahead:
            first = _next_of(self.reader, 0)
            self._ahead = [] if first is None else [first]
            self._note(first)
        return self._shapes or {}

    def repeats(self) -> bool:
        """Whether the data can be gone over more than once, found by starting anew; asked before it is gone over."""
        if not rewound(self.reader):
            return False
        self._ahead = []
        return True

    def _note(self, sample: Any) -> None:
        if self._shapes is None and isinstance(sample, Mapping):
            self._shapes = {str(name): as_array(array, str(name), 0).shape for name, array in sample.items()}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if self.passes:
            self._rewind()
        self.passes += 1
        count = 0
        for sample in islice(self._given(), self.limit):
            if not isinstance(sample, Mapping):
                raise CalibrationError(f"sample {count} is of type {type(sample).__name__}, expected inputs by name")
            self._note(sample)
            if self.passes == 1:
                for name, array in sample.items():
                    if is_float_array(array):
                        self._inputs.note(str(name), array, f" in sample {count}")
            count += 1
            yield sample
        self._inputs.warn()
        self.count = max(self.count, count)
        if not count:
            again = " again" if self.passes > 1 else ""
            raise CalibrationError(
                f"the calibration data reader gave no samples{again}; get_next returned None at once"
            )

    def _given(self) -> Iterator[Any]:
        ahead, self._ahead = self._ahead, []
        yield from ahead
        count = len(ahead)
        while (sample := _next_of(self.reader, count)) is not None:
            count += 1
            yield sample

    def _rewind(self) -> None:
        if not rewound(self.reader):
            raise CalibrationError(
                f"calibration goes over the data several times here, and {type(self.reader).__name__} has no rewind(); "
                "define it, or choose a method that needs one pass (MinMax)"
            )


def as_array(given: Any, name: str, number: int) -> np.ndarray:
    """The input ``name`` of sample ``number`` as an array."""
    try:
        return np.asarray(given)
    except ValueError as error:
        raise CalibrationError(f"input {name!r} of sample {number} is no array: {error}") from error


def example_of(reader: Any) -> Mapping[str, Any] | None:
    """The first sample of a reader; None where it could not be given out once more."""
    if not rewound(reader):
        return None
    found = _next_of(reader, 0)
    rewound(reader)
    return found if isinstance(found, Mapping) else None


def rewound(reader: Any) -> bool:
    """Let a reader start anew; False where it cannot."""
    rewind = getattr(reader, "rewind", None)
    if not callable(rewind):
        return False
    try:
        with _calling(reader, "rewind()"):
            rewind()
    except NotImplementedError:
        return False
    return True


def _next_of(reader: Any, number: int) -> Any:
    with _calling(reader, f"get_next() for sample {number}"):
        return reader.get_next()


def _calling(reader: Any, call: str) -> AbstractContextManager[None]:
    who = f"{type(reader).__name__}.{call}"
    return user_errors(lambda error: f"{who} raised {type(error).__name__}: {error}", NotImplementedError)
