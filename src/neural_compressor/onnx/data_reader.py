"""Calibration data: one sample after the other, as inputs by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from neural_compressor.errors import CalibrationError


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
        self._ahead: list[Any] = []
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the first sample's inputs; it is given out all the same when the data is gone over."""
        if self._shapes is None and not self.passes and not self._ahead:
            first = self.reader.get_next()
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
            self._shapes = {str(name): np.shape(array) for name, array in sample.items()}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if self.passes:
            self._rewind()
        self.passes += 1
        count = 0
        ahead, self._ahead = self._ahead, []
        for sample in islice(chain(ahead, iter(self.reader.get_next, None)), self.limit):
            if not isinstance(sample, Mapping):
                raise CalibrationError(f"sample {count} is of type {type(sample).__name__}, expected inputs by name")
            count += 1
            self._note(sample)
            yield sample
        if not count:
            again = " again" if self.passes > 1 else ""
            raise CalibrationError(
                f"the calibration data reader gave no samples{again}; get_next returned None at once"
            )

    def _rewind(self) -> None:
        if not rewound(self.reader):
            raise CalibrationError(
                f"calibration goes over the data several times here, and {type(self.reader).__name__} has no rewind(); "
                "define it, or choose a method that needs one pass (MinMax)"
            )


def example_of(reader: Any) -> Mapping[str, Any] | None:
    """The first sample of a reader; None where it could not be given out once more."""
    if not rewound(reader):
        return None
    found = reader.get_next()
    rewound(reader)
    return found if isinstance(found, Mapping) else None


def rewound(reader: Any) -> bool:
    """Let a reader start anew; False where it cannot."""
    try:
        reader.rewind()
    except (AttributeError, NotImplementedError):
        return False
    return True
