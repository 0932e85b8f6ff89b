"""The product with a stored weight that every device can compute: dequantize some rows, multiply, forget them."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_fast_at_bf16(device: str) -> bool:
    """Whether a kind of device has instructions for it; one without them computes it slower than float32."""
    return _has_instructions(device)


@functools.cache
def _has_instructions(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


# How many values are dequantized at a time: on a CPU so many that they stay in its cache.
_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}


def dequantized_product(x: Tensor, weight: StoredWeight, dtype: torch.dtype) -> Tensor:
    """``x @ weight.T`` for rows ``x``, computed in ``dtype``; the whole weight is never there in float."""
    x = x.to(dtype)
    parts = weight.parts(_VALUES.get(x.device.type, 1 << 22))
    matrices = ((rows, part.dequantize().to(dtype)) for rows, part in parts)
    if x.requires_grad and torch.is_grad_enabled():
        return torch.cat([F.linear(x, matrix) for _, matrix in matrices], dim=1)
    product = x.new_empty(x.shape[0], weight.shape[0])
    for rows, matrix in matrices:
        torch.mm(x, matrix.T, out=product[:, rows])
    return product


def product_dtype(given: torch.dtype, device: str, exact: bool) -> torch.dtype:
    """What inputs of type ``given`` are multiplied in: the fastest type with three digits, or unless ``exact`` float32.

    >>> product_dtype(torch.bfloat16, "cpu", exact=True)
    torch.float32
    """
    if exact or given == torch.float64:
        return torch.promote_types(given, torch.float32)
    if device == "cpu":
        return torch.bfloat16 if is_fast_at_bf16("cpu") else torch.float32
    return torch.bfloat16 if device == "cuda" and given == torch.float32 else given
