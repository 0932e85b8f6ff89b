"""Calibration data, and what was found on it: kept for further quantizations of the same model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.methods.static.params import KnownRanges
from neural_compressor.onnx.quantization.whole_model import reader_of
from neural_compressor.onnx.runtime.data_reader import Samples, example_of, rewound

_KEPT = 4
"""How many smoothed models, or the same on other data, are kept."""


@dataclass(frozen=True)
class Base:
    """A float model, smoothed or not, and the ranges seen on it so far; None where nobody asks for them again."""

    model: ir.Model
    known: KnownRanges | None


class CalibrationStore:
    """Readers are gone over from their start, as often as they are asked for.

    Ranges are kept, and those that other plans may need collected too, unless there is ``one_plan`` only.
    """

    def __init__(self, reader: Any = None, one_plan: bool = False) -> None:
        self.reader = reader
        self.one_plan = one_plan
        self._samples: dict[int, Samples] = {}
        self._examples: dict[int, Mapping[str, Any] | None] = {}
        self._bases: list[tuple[Hashable, Base]] = []

    def samples(self, configs: Sequence[Any], limit: int | None = None) -> Samples:
        """What the configurations are calibrated with: their own data, or else that of the whole call."""
        reader = reader_of(configs, self.reader)
        if reader is None:
            names = ", ".join(dict.fromkeys(type(config).__name__ for config in configs))
            raise CalibrationError(
                f"{names} needs calibration data; give the configuration, or the call, a calibration_data_reader"
            )
        if id(reader) not in self._samples:
            rewound(reader)  # it may have been gone over before; one that cannot start anew is taken as it is
            self._samples[id(reader)] = Samples(reader)
        samples = self._samples[id(reader)]
        samples.limit = limit
        return samples

    def example(self, configs: Iterable[Any]) -> Mapping[str, Any] | None:
        """A sample to compare models on; None where there is none that could be given out once more."""
        reader = next((config.reader for config in configs if config.reader is not None), self.reader)
        if reader is None:
            return None
        if id(reader) not in self._examples:
            self._examples[id(reader)] = example_of(reader)
        return self._examples[id(reader)]

    def base(self, key: Hashable, make: Callable[[], ir.Model]) -> Base:
        """What was made under ``key`` before, or is made now."""
        for known, base in self._bases:
            if known == key:
                return base
        new = Base(make(), None if self.one_plan else {})
        self._bases = [*self._bases[-_KEPT + 1 :], (key, new)]
        return new
