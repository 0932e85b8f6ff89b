"""Large matrices worked on a part at a time, so that temporaries stay small."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from array_api_compat import device

from neural_compressor.schemes.arrays import Array

# Temporaries of 1 MB stay near a core; an accelerator wants few and large pieces instead.
_CPU_VALUES = 1 << 18
_ACCELERATOR_VALUES = 1 << 26


def row_blocks(x: Array) -> Iterator[slice]:
    """Slices that cut the first axis of ``x`` into parts small enough for the temporaries of elementwise work.

    >>> import numpy as np
    >>> list(row_blocks(np.zeros((150, 4096))))
    [slice(0, 64, None), slice(64, 128, None), slice(128, 150, None)]
    """
    rows, width = x.shape[0], math.prod(x.shape[1:])
    values = _CPU_VALUES if str(device(x)).startswith("cpu") else _ACCELERATOR_VALUES
    step = max(1, values // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def transform_both_axes(square: Array, change: Callable[[Array], Array]) -> None:
    """Apply ``change``, which works along the last axis of a matrix, to the rows of ``square`` and then to its columns.

    A strip at a time, so that no second matrix of that size is made.

    >>> import numpy as np
    >>> square = np.asarray([[1.0, 2.0], [2.0, 3.0]])
    >>> transform_both_axes(square, lambda rows: rows[:, [1, 0]])
    >>> square.tolist()
    [[3.0, 2.0], [2.0, 1.0]]
    """
    strips = strips_of(square.shape[0])
    for strip in strips:
        square[strip, :] = change(square[strip, :])
    for strip in strips:
        square[:, strip] = change(square[:, strip].T).T


def strips_of(width: int, narrowest: int = 128, most: int = 16) -> list[slice]:
    """At ``most`` so many slices of ``width``: what is made for one of them hardly counts.

    >>> strips_of(200)
    [slice(0, 128, None), slice(128, 200, None)]
    """
    step = max(narrowest, -(-width // most))
    return [slice(start, min(start + step, width)) for start in range(0, width, step)]
