"""Data types given by a list of values."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property

from neural_compressor.dtypes.base import DType
from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class CodebookType(DType):
    """Codes are positions in ``values``, which are normalised so that the largest magnitude is what scales map to.

    >>> CodebookType("ternary", (-1.0, 0.0, 1.0)).bits
    2
    """

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) > 1 << 16:
            raise ConfigError(f"codebook {self.name!r} has {len(self.values)} values; codes of 16 bits reach 65536")
        try:
            stored = {struct.pack("<f", value + 0.0) for value in self.values}
        except OverflowError:
            raise ConfigError(f"codebook {self.name!r} has a value beyond what a float32 can be") from None
        if not all(math.isfinite(value) for value in self.values):
            raise ConfigError(f"codebook {self.name!r} may hold finite numbers only, got {self.values}")
        if len(stored) < 2 or len(stored) != len(self.values):
            raise ConfigError(
                f"codebook {self.name!r} needs at least two different values, all different in float32, "
                f"got {self.values}"
            )

    @property
    def bits(self) -> int:
        return (len(self.values) - 1).bit_length()

    @cached_property
    def code_values(self) -> tuple[float, ...]:
        return self.values
