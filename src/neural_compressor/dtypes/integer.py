"""Integers of 1 to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class IntType:
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

    @property
    def min(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def max(self) -> int:
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def is_float(self) -> bool:
        return False
