"""The contract of a data type: the questions that schemes, algorithms, formats and frameworks ask of it.

Nobody outside this package asks which class a data type is of, so a class of your own takes part everywhere.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple


class Binades(NamedTuple):
    """Between two powers of two, from ``2**lowest`` on, lie ``2**mantissa`` evenly spaced values; subnormals below."""

    lowest: int
    mantissa: int


class DType:
    """Base of all data types, which are frozen values. A class of its own gives ``name``, ``bits`` and ``code_values``.

    Everything else follows from these; it is overridden where there is a shorter way to the answer, or another answer.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Powers(DType):
    ...     name: str
    ...     bits: int
    ...
    ...     @cached_property
    ...     def code_values(self):
    ...         sizes = [2.0**-i for i in range(1 << (self.bits - 1))]
    ...         return (*sizes, *(-size for size in sizes))
    >>> Powers("doc_powers", 3).grid
    (-1.0, -0.5, -0.25, -0.125, 0.125, 0.25, 0.5, 1.0)
    """

    if TYPE_CHECKING:
        # Only declared: a dataclass would take what its base has of a field's name for the default of the field.
        @property
        def name(self) -> str:
            """What it is called in configurations, framework YAML, checkpoints and reports."""

        @property
        def bits(self) -> int:
            """How many bits the code of a value is stored in, 1 to 16 (32 for float32)."""

    @cached_property
    def code_values(self) -> tuple[float, ...]:
        """What the codes 0, 1, ... as patterns of ``bits`` bits stand for; NaN, or missing at the end, for no number."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its codes stand for: give it code_values")

    @cached_property
    def needs_scale(self) -> bool:
        """Whether tensors are divided by a scale first; not so for fp32, fp16 and bf16, which take them as they are."""
        return True

    @cached_property
    def is_float32(self) -> bool:
        """Whether it holds every float32, so that nothing is rounded and values are stored as they are."""
        return False

    @cached_property
    def is_integer(self) -> bool:
        """Whether codes are the integers ``min`` to ``max`` themselves, in two's complement where signed.

        Only these can have a zero point, ``value = (code - zero_point) * scale``, and run in integer kernels.
        """
        return False

    @cached_property
    def sign_magnitude(self) -> bool:
        """Whether the top bit of a code is the sign, and the codes without it count the magnitudes upwards."""
        return False

    @cached_property
    def binades(self) -> Binades | None:
        """The spacing of a ``sign_magnitude`` type, where arithmetic finds the nearest value without a table."""
        return None

    @cached_property
    def unit(self) -> float | None:
        """The number that all values are whole multiples of, where integer kernels may multiply with those instead."""
        return None

    @cached_property
    def block_size(self) -> int | None:
        """How many consecutive values share a scale; None where the granularity of the scheme says."""
        return None

    @cached_property
    def scale_type(self) -> DType | None:
        """The type in which the scales of blocks are stored; None where scales are float32."""
        return None

    @cached_property
    def has_tensor_scale(self) -> bool:
        """Whether one float32 scale a tensor multiplies those of its blocks."""
        return False

    @cached_property
    def element_type(self) -> DType:
        """The type of a single value: itself, unless a block shares a scale."""
        return self

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """Every value that is a finite number, once, ascending."""
        return tuple(sorted({value + 0.0 for value in self.code_values if math.isfinite(value)}))

    @cached_property
    def min(self) -> float:
        """The smallest value."""
        return self.grid[0]

    @cached_property
    def max(self) -> float:
        """The largest value."""
        return self.grid[-1]

    @cached_property
    def signed(self) -> bool:
        """Whether there are values below zero."""
        return self.min < 0

    @cached_property
    def peak(self) -> float:
        """The value that the largest magnitude of a tensor is scaled to."""
        return max(abs(self.min), abs(self.max))
