"""Formats in which a block of elements shares a scale: OCP MX and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neural_compressor.dtypes.base import DType
from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class BlockType(DType):
    """``block`` consecutive elements share one scale of type ``scale``.

    With ``tensor_scale`` there is also one float32 scale a tensor (NVFP4), which keeps the block scales in range.
    """

    name: str
    element: DType
    block: int
    scale: DType
    tensor_scale: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"block format {self.name!r} needs blocks of at least one value, not {self.block}")
        if self.element.block_size is not None or not self.element.needs_scale:
            raise ConfigError(
                f"the elements of block format {self.name!r} are to share a scale, and {self.element.name} "
                f"{'has scales of its own' if self.element.needs_scale else 'takes none'}"
            )
        if self.scale.is_integer and self.scale.signed:
            raise ConfigError(f"the scales of block format {self.name!r} are above zero; {self.scale.name} is signed")
        if self.scale.bits > 8:
            raise ConfigError(
                f"block format {self.name!r} stores a scale a block in one byte; {self.scale.name} has "
                f"{self.scale.bits} bits"
            )

    @property
    def bits(self) -> int:
        return self.element.bits

    @cached_property
    def code_values(self) -> tuple[float, ...]:
        return self.element.code_values

    @cached_property
    def element_type(self) -> DType:
        return self.element

    @cached_property
    def block_size(self) -> int:
        return self.block

    @cached_property
    def scale_type(self) -> DType:
        return self.scale

    @cached_property
    def has_tensor_scale(self) -> bool:
        return self.tensor_scale
