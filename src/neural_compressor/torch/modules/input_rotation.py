"""Turn the inputs of a layer by Hadamard matrices, in two small matrix products."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from neural_compressor.algorithms.hadamard import Rotation, hadamard_matrix


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """``rotation.apply(x)``, in float32 (or float64) and open to gradients.

    A Hadamard matrix of Sylvester is the Kronecker product of two smaller ones, so that a block of n values costs about
    ``2 * sqrt(n)`` operations a value in two products, instead of log n passes over memory.

    >>> x = torch.randn(2, 96)
    >>> turn = Rotation(96, seed=3)
    >>> bool(torch.allclose(rotated(x, turn), turn.apply(x), atol=1e-5))
    True
    """
    x = x if x.dtype == torch.float64 else x.float()
    if rotation.seed is not None:
        x = x * _signs(rotation.features, rotation.seed, x.device).to(x.dtype)
    outer, inner = _factors(rotation.block_size)
    blocks = x.reshape(*x.shape[:-1], rotation.features // rotation.block_size, outer, inner)
    blocks = _matrix(outer, x.device, x.dtype) @ blocks @ _matrix(inner, x.device, x.dtype)
    return blocks.reshape(x.shape)


def _factors(block: int) -> tuple[int, int]:
    """Two powers of two, as near to one another as can be, whose product is ``block``."""
    bits = block.bit_length() - 1
    return 1 << (bits // 2), 1 << (bits - bits // 2)


@functools.lru_cache(maxsize=64)
def _matrix(n: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # what is kept must also serve a call with gradients
        return torch.from_numpy(hadamard_matrix(n)).to(device, dtype)


@functools.lru_cache(maxsize=64)
def _signs(features: int, seed: int, device: torch.device) -> Tensor:
    # Blocks of one value are turned by their sign alone.
    signs = Rotation(features, block=1, seed=seed).apply(np.ones(features, np.float32))
    with torch.inference_mode(False):
        return torch.from_numpy(signs).to(device)
