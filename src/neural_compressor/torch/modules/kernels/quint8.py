"""Tensors of unsigned 8-bit codes that carry their scale and zero-point (``torch.quint8``)."""

from __future__ import annotations

import torch
from torch import Tensor

U8 = tuple[float, int]
"""Scale and zero-point of unsigned 8-bit codes."""


def to_quint8(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """``x`` on the grid ``(code - zero_point) * scale``; a tensor that is quantized already is returned as it is."""
    if x.is_quantized:
        return x
    return torch.quantize_per_tensor(x.detach().float(), scale, zero_point, torch.quint8)


def codes_of(x: Tensor) -> Tensor:
    """The codes of a quint8 tensor as a uint8 tensor on the same memory (``int_repr`` copies element by element)."""
    view = torch.empty(0, dtype=torch.uint8)
    return view.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def with_qparams(codes: Tensor, scale: float, zero_point: int) -> Tensor:
    """A quint8 tensor on the memory of the uint8 tensor ``codes``."""
    empty: Tensor = torch._empty_affine_quantized((0,), scale=scale, zero_point=zero_point, dtype=torch.quint8)
    return empty.set_(codes.untyped_storage(), codes.storage_offset(), codes.shape, codes.stride())
