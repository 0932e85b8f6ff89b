"""Where products of bfloat16 numbers are fast."""

from __future__ import annotations

import functools

import torch

from neural_compressor.algorithms.gram import cpu_is_fast_at_bf16


@functools.cache
def is_fast_at_bf16(device: str) -> bool:
    """Whether a kind of device has instructions for it."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device == "cpu" and cpu_is_fast_at_bf16(torch)
