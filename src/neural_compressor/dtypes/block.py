"""Formats in which a block of elements shares a scale: OCP MX and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass

from neural_compressor.dtypes.integer import IntType
from neural_compressor.dtypes.minifloat import FloatType
from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class BlockType:
    """``block`` consecutive elements share one scale of type ``scale``.

    With ``tensor_scale`` there is also one float32 scale a tensor (NVFP4), which keeps the block scales in range.
    """

    name: str
    element: IntType | FloatType
    block: int
    scale: FloatType
    tensor_scale: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"block format {self.name!r} needs blocks of at least one value, not {self.block}")
        if self.scale.bits > 8:
            raise ConfigError(
                f"block format {self.name!r} stores a scale a block in one byte; {self.scale.name} has "
                f"{self.scale.bits} bits"
            )

    @property
    def bits(self) -> int:
        return self.element.bits

    @property
    def bits_per_value(self) -> float:
        """Storage cost of a value with its share of the block scale."""
        return self.element.bits + self.scale.bits / self.block

    @property
    def is_float(self) -> bool:
        return False

    @property
    def signed(self) -> bool:
        return self.element.signed

    @property
    def max(self) -> float:
        return float(self.element.max)

    @property
    def min(self) -> float:
        return float(self.element.min)
