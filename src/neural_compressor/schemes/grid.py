"""Nearest representable number of a data type, as its code, and back; and the size of one step between numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import device

from neural_compressor.dtypes import Binades, DType
from neural_compressor.schemes.arrays import Array, array_namespace, as_bits, like
from neural_compressor.schemes.rounding import round_to_whole

_Table = npt.NDArray[Any]
_EXPONENT_FIELD = 0x7F800000  # of a float32
# A subnormal scale loses digits, and some devices flush it to zero: no scale is smaller than this.
_SMALLEST_STEP = 2.0**-126
_LARGEST = float(np.finfo(np.float32).max)


def encode(x: Array, kind: DType, rounding: str = "even") -> Array:
    """Codes of the values of ``kind`` nearest to ``x``: half to even, saturating.

    Another of :data:`ROUNDINGS` is for integers and for floats whose values are evenly spaced between powers of two.

    An integer's code is the integer; a float's is its bit pattern; that of others is the position in their values.

    >>> from neural_compressor.dtypes import dtype
    >>> encode(np.float32([0.3, -2.6, 99.0]), dtype("fp4_e2m1")).tolist()
    [1, 13, 7]
    """
    xp = array_namespace(x)
    if kind.is_integer:
        return xp.astype(nearest(x, kind, rounding), code_dtype(xp, kind))
    if not kind.sign_magnitude:
        return xp.astype(_in_table(x, kind), code_dtype(xp, kind))
    if kind.binades is None:
        magnitude = _in_table(xp.abs(x), kind)
    else:
        binade, digits = _binade_and_digits(xp.abs(x), kind, kind.binades, rounding)
        above_lowest = (as_bits(binade, xp.int32) >> 23) - (127 + kind.binades.lowest)
        magnitude = xp.astype(digits, xp.int32) + (above_lowest << kind.binades.mantissa)
    codes = xp.astype(magnitude, code_dtype(xp, kind))
    return codes + xp.astype(xp.signbit(x), codes.dtype) * (1 << (kind.bits - 1))


def decode(codes: Array, kind: DType) -> Array:
    """The float32 values of ``codes``.

    >>> from neural_compressor.dtypes import dtype
    >>> decode(np.uint8([1, 13, 7]), dtype("fp4_e2m1")).tolist()
    [0.5, -3.0, 6.0]
    """
    xp = array_namespace(codes)
    return xp.astype(codes, xp.float32) if kind.is_integer else _look_up(_values_by_code(kind), codes)


def nearest(x: Array, kind: DType, rounding: str = "even") -> Array:
    """``decode(encode(x, kind, rounding), kind)``, by a shorter way where there is one.

    >>> from neural_compressor.dtypes import dtype
    >>> nearest(np.float32([0.3, -2.6, 99.0]), dtype("fp4_e2m1")).tolist()
    [0.5, -3.0, 6.0]
    """
    xp = array_namespace(x)
    if kind.is_integer:
        return xp.clip(round_to_whole(x, rounding), kind.min, kind.max)
    if kind.binades is not None:
        binade, digits = _binade_and_digits(x, kind, kind.binades, rounding)
        return digits * (binade * 2.0**-kind.binades.mantissa)
    return decode(encode(x, kind), kind)


def code_dtype(xp: Any, kind: DType) -> Any:
    """The smallest array dtype that holds the codes of ``kind`` and that every array library computes with."""
    if kind.is_integer and kind.signed:
        return xp.int8 if kind.bits <= 8 else xp.int16
    # uint16 exists in torch, but almost nothing is implemented for it.
    return xp.uint8 if kind.bits <= 8 else xp.int32


def _binade_and_digits(x: Array, kind: DType, binades: Binades, rounding: str) -> tuple[Array, Array]:
    """The power of two below ``x`` (not below the smallest normal number), and ``x`` in units of its last digit."""
    xp = array_namespace(x)
    x = xp.astype(xp.clip(x, -kind.max, kind.max), xp.float32, copy=False)
    power = as_bits(xp.astype(as_bits(x, xp.int32) & _EXPONENT_FIELD, xp.int32, copy=False), xp.float32)
    binade = xp.astype(xp.clip(power, 2.0**binades.lowest, None), xp.float32, copy=False)
    return binade, round_to_whole(x / (binade * 2.0**-binades.mantissa), rounding)


def _in_table(x: Array, kind: DType) -> Array:
    """The codes of the values nearest to ``x``, or to magnitudes ``x`` where codes have a sign bit."""
    bounds, order = _sorted_values(kind)
    return _look_up(order, array_namespace(x).searchsorted(like(bounds, x), x))


def _look_up(table: _Table, index: Array) -> Array:
    xp = array_namespace(index)
    values = xp.asarray(table, device=device(index))
    flat = xp.take(values, xp.reshape(xp.astype(index, xp.int32, copy=False), (-1,)), axis=0)
    return xp.reshape(flat, index.shape)


@lru_cache(maxsize=64)
def _sorted_values(kind: DType) -> tuple[_Table, _Table]:
    """Bounds between the sorted values, and the code of each sorted value."""
    values = np.asarray(kind.code_values, dtype=np.float32)
    values = values[: 1 << (kind.bits - 1)] if kind.sign_magnitude else values
    numbers = np.flatnonzero(np.isfinite(values))
    order = numbers[np.argsort(values[numbers], kind="stable")].astype(np.int32)
    return _bounds(values[order].tolist(), order.tolist()), order


@lru_cache(maxsize=64)
def _values_by_code(kind: DType) -> _Table:
    # Codes that are no number of the type are NaN, so that a corrupted file cannot pass for data.
    table = np.full(1 << kind.bits, np.nan, dtype=np.float32)
    table[: len(kind.code_values)] = kind.code_values
    return table


def _bounds(values: Sequence[float], codes: Sequence[int]) -> _Table:
    """Float32 numbers b such that ``x > b[i]`` says that x belongs to value i + 1 or a later one."""
    bounds = []
    for place, (low, high) in enumerate(pairwise(values)):
        middle = (Fraction(low) + Fraction(high)) / 2  # exact: float64 would lose a tiny value beside a large one
        below = np.float32(float(middle))
        # On a tie the even code wins: where that is the upper one, the bound moves below the middle.
        upper_wins = codes[place] % 2 == 1 and codes[place + 1] % 2 == 0
        if Fraction(float(below)) > middle or (Fraction(float(below)) == middle and upper_wins):
            below = np.nextafter(below, np.float32(-np.inf))
        bounds.append(below)
    return np.asarray(bounds, dtype=np.float32)


def step_size(extent: Array, steps: float) -> Array:
    """``extent / steps``, and 1 where the extent is zero.

    >>> step_size(np.float32([254.0, 0.0]), 127).tolist()
    [2.0, 1.0]
    """
    xp = array_namespace(extent)
    size = xp.clip(xp.clip(extent, None, _LARGEST * min(steps, 1.0)) / steps, _SMALLEST_STEP, _LARGEST)
    # NumPy 1 makes a float64 of a single float32 and a Python number; so in the other places that round to the dtype.
    return xp.astype(xp.where(extent > 0, size, xp.ones_like(size)), extent.dtype, copy=False)
