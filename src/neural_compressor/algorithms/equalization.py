"""Scales that make the weights of two layers in a row equally large, channel by channel."""

from __future__ import annotations

from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


def equalizing_scale(output_reach: Array, input_reach: Array) -> Array:
    """What to divide each output of the first layer by, and multiply weights of the second with: ``sqrt(first / second)``.

    Nagel et al. 2019, equation 11. The arguments are the largest magnitudes among the weights that make, and that read, each
    channel; both are ``sqrt(first * second)`` afterwards. A channel without weights on one side keeps its scale of 1.

    >>> import numpy as np
    >>> equalizing_scale(np.float32([8.0, 1.0, 0.0]), np.float32([2.0, 4.0, 3.0])).tolist()
    [2.0, 0.5, 1.0]
    """
    first = as_float32(output_reach)
    second = like(input_reach, first)
    xp = array_namespace(first)
    live = xp.logical_and(first > 0, second > 0)
    ones = xp.ones_like(first)
    return xp.where(live, xp.sqrt(xp.where(live, first, ones) / xp.where(live, second, ones)), ones)
