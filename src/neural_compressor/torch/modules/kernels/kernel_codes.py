"""A stored weight as the unsigned integers that low-bit kernels multiply with, in groups of a size they know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight


@dataclass(frozen=True, eq=False)
class KernelCodes:
    """``value = (code - zero) * scale`` with codes of ``bits`` bits and runs of ``group`` inputs to a scale.

    Inputs are filled up to ``columns``: where a kernel wants more than there are it must be given zeros.
    """

    weight: StoredWeight
    bits: int
    group: int
    columns: int

    @property
    def middle(self) -> int:
        """The code that stands for zero in a symmetric weight."""
        return 1 << (self.bits - 1)

    @property
    def _takes_up_zeros(self) -> bool:
        """Whether codes less their zero points still fit: a kernel rounds what it adds to a group, but not codes."""
        return self.weight.zero_point is not None and (1 << self.weight.scheme.dtype.element_type.bits) <= self.middle

    def codes(self, part: StoredWeight) -> Tensor:
        """The codes of some rows, uint8 of shape (rows, :attr:`columns`)."""
        kind, shift = part.scheme.dtype.element_type, self.middle
        numbers = part.numbers() / _unit(part)
        if self._takes_up_zeros:
            zeros = part.zeros()
            assert zeros is not None
            numbers -= zeros.repeat_interleave(part.group_size, 1)[:, : part.shape[1]]
        elif not kind.signed:
            shift = 0
        return F.pad((numbers + shift).to(torch.uint8), (0, self.columns - part.shape[1]))

    def scales(self) -> Tensor:
        """Float32, (outputs, columns / group)."""
        return self._spread(self.weight.steps() * _unit(self.weight))

    def zeros(self) -> Tensor | None:
        """Float32 in the shape of :meth:`scales`; None where every one is :attr:`middle`."""
        zeros = self.weight.zeros()
        if zeros is None or self._takes_up_zeros:
            return None
        return self._spread(zeros + self.middle if self.weight.scheme.dtype.signed else zeros)

    def _spread(self, parameter: Tensor) -> Tensor:
        groups = self.columns // self.group
        return parameter.repeat_interleave(groups // parameter.shape[1], 1).expand(self.weight.shape[0], groups)


def code_bits(weight: StoredWeight) -> int | None:
    """Bits of the integers the codes of ``weight`` are multiples of one unit by; None where there are none of 8 bits.

    Besides integers that is true of floats with few exponents: an fp4 number is a multiple of 0.5 up to 12.
    """
    kind = weight.scheme.dtype.element_type
    if kind.is_integer:
        return kind.bits if kind.bits <= 8 else None
    if kind.unit is None or not kind.signed:
        return None
    largest = kind.peak / kind.unit
    return int(largest).bit_length() + 1 if largest <= 127 else None


def kernel_codes(weight: StoredWeight, bits: int, sizes: Sequence[int]) -> KernelCodes | None:
    """``weight`` for a kernel with codes of ``bits`` bits and the group ``sizes``, or None where it does not fit.

    A group of the weight may be several groups of the kernel with the same scale.
    """
    needed = code_bits(weight)
    if needed is None or needed > bits:
        return None
    size, inputs = weight.group_size, weight.shape[1]
    if weight.groups == 1:
        size = -(-inputs // min(sizes)) * min(sizes)
    fitting = [s for s in sizes if size % s == 0]
    return KernelCodes(weight, bits, max(fitting), size * weight.groups) if fitting else None


def _unit(weight: StoredWeight) -> float:
    return weight.scheme.dtype.element_type.unit or 1.0
