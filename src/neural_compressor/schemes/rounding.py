"""Ways to round a number to a whole one: ties to even, ties away from zero, towards zero, at random."""

from __future__ import annotations

import math

from array_api_compat import device

from neural_compressor.schemes.arrays import Array, array_namespace, as_bits

ROUNDINGS = ("even", "nearest", "floor", "dither")
"""``even`` and ``nearest`` differ in ties alone, which go to the even number and away from zero. ``floor`` cuts digits off.
``dither`` goes up as often as what was cut off says, so that errors cancel in a mean."""

_MAGNITUDE, _WORD = 0x7FFFFFFF, 0xFFFFFFFF
_ODD, _MIX = 0x9E3779B1, 0x45D9F3B


def round_to_whole(x: Array, rounding: str = "even") -> Array:
    """``x`` (float32) rounded to whole numbers; signs are kept, so that magnitudes are what is rounded.

    >>> import numpy as np
    >>> x = np.float32([0.5, -1.5, 2.5, -0.9])
    >>> {how: round_to_whole(x, how).tolist() for how in ("even", "nearest", "floor")}
    {'even': [0.0, -2.0, 2.0, -1.0], 'nearest': [1.0, -2.0, 3.0, -1.0], 'floor': [0.0, -1.0, 2.0, -0.0]}
    """
    xp = array_namespace(x)
    if rounding == "even":
        return xp.round(x)
    whole = xp.trunc(x)
    if rounding == "floor":
        return whole
    # Half added before the digits are cut would be lost beside numbers just below a half.
    rest = xp.abs(x - whole)
    up = rest >= 0.5 if rounding == "nearest" else rest > _uniform(x)
    return whole + xp.copysign(xp.astype(up, x.dtype), x)


def _uniform(x: Array) -> Array:
    """A number from 0 up to 1 for each of ``x``, made of its bits and its place: nothing to seed, the same everywhere."""
    xp = array_namespace(x)
    place = xp.reshape(xp.arange(math.prod(x.shape), dtype=xp.int64, device=device(x)), x.shape)
    mixed = (xp.astype(as_bits(x, xp.int32) & _MAGNITUDE, xp.int64) ^ (place * _ODD)) & _WORD
    for shift in (16, 13, 16):  # the finalizer of MurmurHash3
        mixed = ((mixed ^ (mixed >> shift)) * _MIX) & _WORD
    return xp.astype(mixed >> 8, xp.float32) * 2.0**-24
