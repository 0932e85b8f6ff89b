"""The size of one step of a grid, safe at both ends of what a float32 can be."""

from __future__ import annotations

import numpy as np

from neural_compressor.schemes.arrays import Array, array_namespace

# A subnormal scale loses digits, and some devices flush it to zero: no scale is smaller than this.
SMALLEST = 2.0**-126
_LARGEST = float(np.finfo(np.float32).max)


def step_size(extent: Array, steps: float) -> Array:
    """``extent / steps``, and 1 where the extent is zero.

    >>> step_size(np.float32([254.0, 0.0]), 127).tolist()
    [2.0, 1.0]
    """
    xp = array_namespace(extent)
    size = xp.clip(xp.clip(extent, None, _LARGEST * min(steps, 1.0)) / steps, SMALLEST, None)
    return xp.where(extent > 0, size, xp.ones_like(size))
