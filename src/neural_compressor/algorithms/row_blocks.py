"""Rows of a large matrix, a cache-sized part at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from array_api_compat import device

from neural_compressor.schemes.arrays import Array

# Temporaries of 4 MB stay near a core; an accelerator wants few and large pieces instead.
_CPU_VALUES = 1 << 20
_ACCELERATOR_VALUES = 1 << 26


def row_blocks(x: Array) -> Iterator[slice]:
    """Slices that cut the first axis of ``x`` into parts small enough for the temporaries of elementwise work.

    >>> import numpy as np
    >>> list(row_blocks(np.zeros((600, 4096))))
    [slice(0, 256, None), slice(256, 512, None), slice(512, 600, None)]
    """
    rows, width = x.shape[0], math.prod(x.shape[1:])
    values = _CPU_VALUES if str(device(x)).startswith("cpu") else _ACCELERATOR_VALUES
    step = max(1, values // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
