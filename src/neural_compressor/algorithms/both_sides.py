"""Change the inputs of a square matrix on both of its sides, in place."""

from __future__ import annotations

from collections.abc import Callable

from neural_compressor.schemes.arrays import Array


def change_both_sides(square: Array, change: Callable[[Array], Array]) -> None:
    """Apply ``change``, which works along the last axis of a matrix, to the rows of ``square`` and then to its columns.

    A strip at a time, so that no second matrix of that size is made.

    >>> import numpy as np
    >>> square = np.asarray([[1.0, 2.0], [2.0, 3.0]])
    >>> change_both_sides(square, lambda rows: rows[:, [1, 0]])
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
