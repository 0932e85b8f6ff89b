"""The distance of an approximation from its reference."""

from __future__ import annotations

import math

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


def sqnr_db(reference: Array, approximation: Array) -> float:
    """Signal to quantization noise in decibel: infinite where the two are equal, higher is better.

    >>> import numpy as np
    >>> round(sqnr_db(np.float32([1.0, -1.0]), np.float32([1.1, -0.9])), 3)
    20.0
    """
    reference = as_float32(reference)
    approximation = like(approximation, reference)
    if tuple(reference.shape) != tuple(approximation.shape):
        raise QuantizationError(
            f"tensors of shapes {tuple(reference.shape)} and {tuple(approximation.shape)} cannot be compared; "
            "they must be the same"
        )
    xp = array_namespace(reference)
    exact = xp.astype(reference, xp.float64)
    signal = float(xp.sum(exact**2))
    noise = float(xp.sum((exact - xp.astype(approximation, xp.float64)) ** 2))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
