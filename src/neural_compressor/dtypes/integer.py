"""Integers of 1 to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neural_compressor.dtypes.base import DType
from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class IntType(DType):
    """A two's-complement or unsigned integer of ``bits`` bits.

    >>> IntType(4).name, IntType(4).min, IntType(4).max
    ('int4', -8, 7)
    >>> IntType(4, signed=False).name
    'uint4'
    """

    bits: int
    signed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise ConfigError(f"integer data types have 1 to 16 bits, not {self.bits}")

    @property
    def name(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"

    @cached_property
    def code_values(self) -> tuple[float, ...]:
        return (*map(float, range(self.max + 1)), *map(float, range(self.min, 0)))

    @cached_property
    def min(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @cached_property
    def max(self) -> int:
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @cached_property
    def peak(self) -> float:
        return max(self.max, 1)  # one signed bit has the values -1 and 0

    @cached_property
    def is_integer(self) -> bool:
        return True

    @cached_property
    def unit(self) -> float:
        return 1.0
