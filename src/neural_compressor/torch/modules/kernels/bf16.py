"""Where products of bfloat16 numbers are fast."""

from __future__ import annotations

import functools

import torch


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_fast_at_bf16(device: str) -> bool:
    """Whether a kind of device has instructions for it; one without them computes it slower than float32."""
    return _has_instructions(device)


@functools.cache
def _has_instructions(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
