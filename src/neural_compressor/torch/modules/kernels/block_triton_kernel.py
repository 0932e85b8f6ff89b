"""The Triton source of the rounding to block formats; imported only where Triton is there."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _whole(x, rounding: tl.constexpr):
    """``x`` to whole numbers, its sign kept: 0 ties to even, 1 ties away from zero, 2 towards zero. Below 2**22."""
    size = tl.abs(x)
    if rounding == 0:
        # Beside 1.5 * 2**23 a float32 has no digits behind the point, and the adder rounds ties to even.
        rounded = (size + 12582912.0) - 12582912.0
    else:
        rounded = tl.floor(size)
        if rounding == 1:
            rounded += tl.where(size - rounded >= 0.5, 1.0, 0.0)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (rounded.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _to_float(x, lowest, ulp, smallest, largest, rounding: tl.constexpr):
    """``x`` to a float type whose numbers are evenly spaced between powers of two, and below ``lowest``."""
    x = tl.minimum(tl.maximum(x, smallest), largest)
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    step = tl.maximum(power, lowest) * ulp
    return _whole(tl.div_rn(x, step), rounding) * step


@triton.jit
def round_blocks_kernel(
    x_pointer,
    out_pointer,
    whole_pointer,
    groups,
    in_row,
    width,
    size: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
    rounding: tl.constexpr,
    is_integer: tl.constexpr,
    lowest: tl.constexpr,
    ulp: tl.constexpr,
    smallest: tl.constexpr,
    largest: tl.constexpr,
    is_power: tl.constexpr,
    peak: tl.constexpr,
    top: tl.constexpr,
    first: tl.constexpr,
    last: tl.constexpr,
    scale_lowest: tl.constexpr,
    scale_ulp: tl.constexpr,
    scale_least: tl.constexpr,
    scale_most: tl.constexpr,
):
    """A tile of groups: their largest values, scales of these, values in units of the scales, rounded, and back."""
    group = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    inside = tl.arange(0, padded)
    column = (group % in_row)[:, None] * size + inside[None, :]
    place = (group // in_row)[:, None] * width + column
    mask = (group < groups)[:, None] & (inside < size)[None, :] & (column < width)
    x = tl.load(x_pointer + place, mask=mask, other=0.0)
    whole = tl.load(whole_pointer)
    is_bad = tl.max(tl.where(tl.abs(x) <= 3.4028234663852886e38, 0, 1), axis=1)
    magnitude = tl.max(tl.abs(tl.where(tl.abs(x) <= 3.4028234663852886e38, x, 0.0)), axis=1)
    if is_power:
        exponent = (magnitude.to(tl.int32, bitcast=True) >> 23) - 127 - top
        exponent = tl.minimum(tl.maximum(exponent, first), last)
        # The smallest powers are no normal numbers: their only bit stands in the digits.
        is_normal = exponent > -127
        bits = tl.where(is_normal, exponent + 127, 1) << tl.where(is_normal, 23, exponent + 149)
        scale = bits.to(tl.float32, bitcast=True)
    else:
        wanted = tl.div_rn(tl.div_rn(magnitude, peak), whole)
        scale = _to_float(tl.maximum(wanted, scale_least), scale_lowest, scale_ulp, scale_least, scale_most, 0)
    scale = tl.where(magnitude == 0.0, 1.0, scale)
    step = (scale if is_power else scale * whole)[:, None]
    steps = tl.div_rn(x, tl.broadcast_to(step, x.shape))
    if is_integer:
        rounded = tl.minimum(tl.maximum(_whole(steps, rounding), smallest), largest)
    else:
        rounded = _to_float(steps, lowest, ulp, smallest, largest, rounding)
    values = tl.where((is_bad != 0)[:, None], float("nan"), rounded * step)
    tl.store(out_pointer + place, values, mask=mask)
