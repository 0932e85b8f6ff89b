"""The range of a tensor over each part that has its own scale, and how such a scale lines up with the tensor."""

from __future__ import annotations

import math

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.granularity import Granularity, PerBlock, PerChannel, PerGroup, PerToken
from neural_compressor.schemes.scheme import TensorScheme


def value_range(x: Array, granularity: Granularity) -> tuple[Array, Array]:
    """Smallest and largest value of each part of ``x`` that has its own scale, in the shape of the scale.

    NaN and Inf show in the result, so that a check of the range is a check of the tensor.

    >>> import numpy as np
    >>> low, high = value_range(np.asarray([[1.0, -2.0, 5.0], [0.0, 3.0, 4.0]]), PerGroup(2))
    >>> low.tolist(), high.tolist()
    ([[-2.0, 5.0], [0.0, 4.0]], [[1.0, 5.0], [3.0, 4.0]])
    """
    _check(x, granularity)
    x = as_float32(x)
    xp = array_namespace(x)
    axes: int | tuple[int, ...] | None = None
    if isinstance(granularity, PerChannel):
        axes = tuple(a for a in range(x.ndim) if a != granularity.axis % x.ndim)
        if not axes:
            return x, x
    elif isinstance(granularity, PerToken):
        axes = -1
    elif isinstance(granularity, (PerGroup, PerBlock)):
        x, axes = to_parts(x, granularity), -1
    return xp.min(x, axis=axes), xp.max(x, axis=axes)


def part_sums(x: Array, granularity: Granularity) -> Array:
    """The sum of each part of ``x`` that has its own scale; a last short group counts its last value more than once."""
    xp = array_namespace(x)
    axes: int | tuple[int, ...] | None = None
    if isinstance(granularity, PerChannel):
        axes = tuple(a for a in range(x.ndim) if a != granularity.axis % x.ndim)
        return xp.sum(x, axis=axes) if axes else x
    if isinstance(granularity, (PerGroup, PerBlock, PerToken)):
        x, axes = to_parts(x, granularity), -1
    return xp.sum(x, axis=axes)


def scale_granularity(scheme: TensorScheme) -> Granularity:
    """The granularity scales really have: a block format brings its own.

    >>> from neural_compressor.dtypes import dtype
    >>> scale_granularity(TensorScheme(dtype("mxfp4")))
    PerGroup(size=32)
    """
    size = scheme.dtype.block_size
    return scheme.granularity if size is None else PerGroup(size)


def scale_shape(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """The shape of the scales of a tensor of ``shape``.

    >>> scale_shape((8, 100), PerGroup(32))
    (8, 4)
    """
    if isinstance(granularity, PerChannel):
        return (shape[granularity.axis],)
    if isinstance(granularity, PerGroup):
        return (*shape[:-1], -(-shape[-1] // granularity.size))
    if isinstance(granularity, PerToken):
        return shape[:-1]
    if isinstance(granularity, PerBlock):
        return (-(-shape[0] // granularity.rows), -(-shape[1] // granularity.columns))
    return ()


def to_parts(x: Array, granularity: Granularity) -> Array:
    """``x`` with groups or blocks on an axis of their own, behind the others; other granularities leave it as it is.

    A last short group is filled up with its last value, which changes neither its minimum nor its maximum.
    """
    if isinstance(granularity, PerBlock):
        return _to_blocks(x, granularity)
    if not isinstance(granularity, PerGroup):
        return x
    xp = array_namespace(x)
    lead, count = tuple(x.shape[:-1]), x.shape[-1]
    size = min(granularity.size, count)
    groups = -(-count // size)
    missing = groups * size - count
    if missing:
        x = xp.concat([x, xp.broadcast_to(x[..., -1:], (*lead, missing))], axis=-1)
    return xp.reshape(x, (*lead, groups, size))


def from_parts(parts: Array, shape: tuple[int, ...], granularity: Granularity) -> Array:
    """What :func:`to_parts` was made from."""
    if isinstance(granularity, PerBlock):
        xp, (rows, columns) = (
            array_namespace(parts),
            (min(granularity.rows, shape[0]), min(granularity.columns, shape[1])),
        )
        blocks = xp.permute_dims(xp.reshape(parts, (*parts.shape[:2], rows, columns)), (0, 2, 1, 3))
        return xp.reshape(blocks, (parts.shape[0] * rows, parts.shape[1] * columns))[: shape[0], : shape[1]]
    if not isinstance(granularity, PerGroup):
        return parts
    xp = array_namespace(parts)
    rows = xp.reshape(parts, (*shape[:-1], parts.shape[-2] * parts.shape[-1]))
    return rows[..., : shape[-1]]


def against_parts(parameter: Array, shape: tuple[int, ...], granularity: Granularity) -> Array:
    """A scale (or zero point) of a tensor of ``shape``, shaped to broadcast against ``to_parts`` of the tensor."""
    xp = array_namespace(parameter)
    wanted = scale_shape(shape, granularity)
    if tuple(parameter.shape) != wanted:
        raise QuantizationError(
            f"a tensor of shape {shape} quantized {granularity.name} has scales of shape {wanted}, "
            f"not {tuple(parameter.shape)}"
        )
    if isinstance(granularity, PerChannel):
        axis = granularity.axis % len(shape)
        return xp.reshape(parameter, tuple(-1 if a == axis else 1 for a in range(len(shape))))
    return parameter[..., None] if isinstance(granularity, (PerGroup, PerToken, PerBlock)) else parameter


def _to_blocks(x: Array, granularity: PerBlock) -> Array:
    """A matrix as (block rows, block columns, values of a block), the last ones filled up with their last row and column."""
    xp = array_namespace(x)
    rows, columns = min(granularity.rows, x.shape[0]), min(granularity.columns, x.shape[1])
    missing = -x.shape[0] % rows, -x.shape[1] % columns
    if missing[0]:
        x = xp.concat([x, xp.broadcast_to(x[-1:, :], (missing[0], x.shape[1]))], axis=0)
    if missing[1]:
        x = xp.concat([x, xp.broadcast_to(x[:, -1:], (x.shape[0], missing[1]))], axis=1)
    blocks = xp.reshape(x, (x.shape[0] // rows, rows, x.shape[1] // columns, columns))
    return xp.reshape(xp.permute_dims(blocks, (0, 2, 1, 3)), (*blocks.shape[::2], rows * columns))


def require_finite(low: Array, high: Array, what: str = "the tensor") -> None:
    """Refuse a range that shows NaN or Inf."""
    xp = array_namespace(low)
    bad = xp.logical_not(xp.logical_and(xp.isfinite(low), xp.isfinite(high)))
    if bool(xp.any(bad)):
        where = f" in {int(xp.sum(xp.astype(bad, xp.int32)))} of {math.prod(bad.shape)} parts" if bad.ndim else ""
        raise QuantizationError(
            f"{what} holds NaN or Inf{where}, which no scale can represent; look for an overflow or a missing "
            "initialisation before quantizing"
        )


def _check(x: Array, granularity: Granularity) -> None:
    shape = tuple(x.shape)
    if 0 in shape:
        raise QuantizationError(f"a tensor of shape {shape} has no values to quantize")
    if isinstance(granularity, PerChannel) and not -len(shape) <= granularity.axis < len(shape):
        raise QuantizationError(f"a tensor of shape {shape} has no channel axis {granularity.axis}")
    if isinstance(granularity, PerToken) and not shape:
        raise QuantizationError("a tensor with no axes has no tokens; use granularity per_tensor")
    if isinstance(granularity, PerBlock):
        if len(shape) != 2:
            raise QuantizationError(f"a tensor of shape {shape} is no matrix that could be cut into blocks")
        if granularity.rows < 1 or granularity.columns < 1:
            raise QuantizationError(
                f"a block has at least one row and column, not {granularity.rows} x {granularity.columns}"
            )
    if isinstance(granularity, PerGroup):
        if not shape:
            raise QuantizationError("a tensor with no axes cannot be cut into groups; use granularity per_tensor")
        if granularity.size < 1:
            raise QuantizationError(f"a group has at least one value, not {granularity.size}")
