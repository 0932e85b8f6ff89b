"""Equalize the ranges of two layers that follow one another."""

from __future__ import annotations

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


def equalizing_scale(first: Array, second: Array) -> Array:
    """What to divide each output of ``first`` by, and multiply each input of ``second`` with.

    The largest magnitudes on both sides of a channel become equal (Nagel et al. 2019, equation 11). The outputs of
    ``first`` lie on its axis 0 and the inputs of ``second`` on its axis 1. A channel with no weight on one side keeps its
    scale of 1. Between the two there may only be what commutes with a positive factor, such as ReLU.

    >>> import numpy as np
    >>> equalizing_scale(np.float32([[8.0], [1.0]]), np.float32([[2.0, 1.0]])).tolist()
    [2.0, 1.0]
    """
    first = as_float32(first)
    second = like(second, first)
    if second.ndim < 2 or first.shape[0] != second.shape[1]:
        raise QuantizationError(
            f"weights of shapes {tuple(first.shape)} and {tuple(second.shape)} do not follow one another: axis 0 of the "
            "first must be axis 1 of the second"
        )
    xp = array_namespace(first)
    out_range = xp.max(xp.abs(xp.reshape(first, (first.shape[0], -1))), axis=1)
    in_range = xp.max(xp.abs(second), axis=tuple(a for a in range(second.ndim) if a != 1))
    live = xp.logical_and(out_range > 0, in_range > 0)
    one = xp.ones_like(out_range)
    ratio = xp.where(live, out_range, one) / xp.where(live, in_range, one)
    return xp.where(live, xp.sqrt(ratio), one)


def equalize(first: Array, second: Array, bias: Array | None = None) -> tuple[Array, Array, Array | None]:
    """Both weights, and the bias of the first, with the scale of :func:`equalizing_scale` moved across.

    >>> import numpy as np
    >>> first, second, _ = equalize(np.float32([[8.0], [1.0]]), np.float32([[2.0, 1.0]]))
    >>> first.tolist(), second.tolist()
    ([[4.0], [1.0]], [[4.0, 1.0]])
    """
    scale = equalizing_scale(first, second)
    xp = array_namespace(scale)
    down = xp.reshape(scale, (-1, *(1 for _ in first.shape[1:])))
    up = xp.reshape(scale, (1, -1, *(1 for _ in second.shape[2:])))
    return as_float32(first) / down, like(second, scale) * up, None if bias is None else like(bias, scale) / scale
