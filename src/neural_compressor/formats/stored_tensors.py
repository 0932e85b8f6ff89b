"""Checks of what a checkpoint holds before it is believed, and of what is about to be written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.formats.byte_views import dtype_name
from neural_compressor.schemes import QuantizedArray
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts


def required(tensors: Mapping[str, Array], part: str, dtype: str | None = None) -> Array:
    """The tensor ``part`` of a layer; refused where it is missing or not of ``dtype``."""
    if part not in tensors:
        raise FormatError(f"tensor {part!r} is missing; found {', '.join(sorted(tensors)) or 'none'}")
    array = tensors[part]
    if dtype is not None and dtype_name(array) != dtype:
        raise FormatError(f"{part!r} is stored as {dtype}, found {array.dtype}")
    return array


def matrix(tensors: Mapping[str, Array], part: str, dtype: str | None = None) -> Array:
    """:func:`required`, with two axes and no empty one."""
    array = required(tensors, part, dtype)
    if len(array.shape) != 2 or 0 in array.shape:
        raise FormatError(f"{part!r} is a matrix, found shape {tuple(array.shape)}")
    return array


def of_shape(array: Array, shape: tuple[int, ...], part: str) -> Array:
    """``array``, refused where its shape is another."""
    if tuple(array.shape) != shape:
        raise FormatError(
            f"{part!r} has the shape {tuple(array.shape)}; by the configuration and the other tensors it is {shape}"
        )
    return array


def finite_scale(scale: Array, part: str) -> Array:
    """``scale``, refused where it is no floating-point tensor or holds NaN or Inf."""
    xp = array_namespace(scale)
    if not xp.isdtype(scale.dtype, "real floating"):
        raise FormatError(f"{part!r} is a floating-point tensor, found {scale.dtype}")
    if not bool(xp.all(xp.isfinite(scale))):
        raise FormatError(f"{part!r} holds NaN or Inf: the file is damaged")
    return scale


def one_number(tensors: Mapping[str, Array], part: str) -> Array:
    """The tensor ``part``, one finite float32 above 0, with no axes."""
    scale = finite_scale(required(tensors, part), part)
    if math.prod(scale.shape) != 1:
        raise FormatError(f"{part!r} is one number, found the shape {tuple(scale.shape)}")
    if not float(array_namespace(scale).max(scale)) > 0:
        raise FormatError(f"{part!r} is above 0, found {float(array_namespace(scale).max(scale)):g}")
    return array_namespace(scale).reshape(as_float32(scale), ())


def with_checked_scales(array: QuantizedArray, part: str) -> QuantizedArray:
    """``array``, refused where a scale is below 0, or 0 though the values it belongs to are not; those get a scale of 1."""
    xp, scale = array_namespace(array.codes), array.qparams.scale
    if scale is None or bool(xp.all(scale > 0)):
        return array
    if bool(xp.any(scale < 0)):
        raise FormatError(f"{part!r} holds scales below 0: the file is damaged")
    granularity = scale_granularity(array.scheme)
    none = against_parts(xp.astype(scale == 0, xp.uint8), array.shape, granularity)
    # The sign is no value: 0 and -0 are the same number.
    magnitudes = (
        array.codes if array.scheme.dtype.is_integer else array.codes & ((1 << (array.scheme.dtype.bits - 1)) - 1)
    )
    parts = to_parts(magnitudes, granularity)
    lost = from_parts(xp.astype((parts != 0) & (none != 0), xp.uint8), array.shape, granularity)
    if bool(xp.any(lost != 0)):
        raise FormatError(f"{part!r} holds scales of 0 for values that are not 0: the file is damaged")
    return replace(array, scale=xp.where(scale == 0, xp.ones_like(scale), scale))


def checked_groups(g_idx: Array, runs: Array, groups: int, part: str) -> Array | None:
    """``g_idx`` as int32, refused where it points beyond the groups; None where it says what ``runs`` says."""
    xp = array_namespace(g_idx)
    of_shape(g_idx, tuple(runs.shape), part)
    if not xp.isdtype(g_idx.dtype, "integral") or int(xp.min(g_idx)) < 0 or int(xp.max(g_idx)) >= groups:
        raise FormatError(f"{part!r} does not name groups from 0 to {groups - 1}")
    return None if bool(xp.all(g_idx == runs)) else xp.astype(g_idx, xp.int32, copy=False)


def whole_groups(inputs: int, group_size: int) -> int:
    """How many groups the columns make, refused where the last would be short, which the layout does not allow."""
    if group_size != -1 and inputs % group_size:
        raise FormatError(f"{inputs} inputs are not made of whole groups of {group_size}")
    return 1 if group_size == -1 else inputs // group_size


def option(config: Mapping[str, Any], *keys: str) -> int:
    """The whole number in ``config`` under the first of ``keys`` that is there."""
    for key in keys:
        if key in config:
            if isinstance(config[key], bool) or not isinstance(config[key], int):
                raise FormatError(f"{key!r} in the quantization config is a whole number, found {config[key]!r}")
            return int(config[key])
    raise FormatError(f"the quantization config has no {' or '.join(repr(k) for k in keys)}")


def group_size_of(config: Mapping[str, Any], *keys: str) -> int:
    """The group size in ``config``; -1 for whole rows."""
    size = option(config, *keys)
    if size != -1 and size < 1:
        raise FormatError(f"{keys[0]!r} in the quantization config is positive, or -1 for whole rows; found {size}")
    return size


def half_scale(scale: Array) -> Array:
    """``scale`` as float16, which these formats store."""
    xp = array_namespace(scale)
    return xp.astype(scale, xp.float16)


def why_no_half_scale(scale: Array) -> str | None:
    """Why float16 cannot hold ``scale``; None where it can."""
    xp = array_namespace(scale)
    exact = as_float32(scale)
    # Compared before the conversion, which would warn of what is refused here.
    if bool(xp.any(xp.abs(exact) > 65504.0)):
        return "it has scales above 65504, the largest float16 number, in which the format stores them"
    if bool(xp.any((xp.abs(exact) < 2.0**-25) & (exact != 0))):
        return "it has scales that float16, in which the format stores them, rounds to zero"
    return None
