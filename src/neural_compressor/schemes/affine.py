"""From a range of values to scale and zero point, and with these between values and the steps of the grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import is_array_api_obj

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like
from neural_compressor.schemes.block import block_scales
from neural_compressor.schemes.grid import step_size
from neural_compressor.schemes.ranges import against_parts, from_parts, require_finite, scale_granularity, to_parts
from neural_compressor.schemes.scheme import TensorScheme


@dataclass(frozen=True)
class QParams:
    """``value = (code - zero_point) * scale``; scales in the shape their granularity says.

    ``zero_point`` (int32) is None where it is zero by construction. ``tensor_scale`` multiplies the block scales of a
    format that has one (nvfp4). All are None for fp32, bf16 and fp16, which have no scale.
    """

    scale: Array | None
    zero_point: Array | None = None
    tensor_scale: Array | None = None

    def rows(self, rows: slice) -> QParams:
        """The parameters of some rows of the tensor, where each row has its own."""
        scale, zero_point = (None if each is None else each[rows] for each in (self.scale, self.zero_point))
        return QParams(scale, zero_point, self.tensor_scale)


def integer_limits(scheme: TensorScheme) -> tuple[int, int]:
    """The smallest and largest integer a scheme uses; ``reduce_range`` leaves the top bit unused.

    A symmetric signed type then reaches as far up as down: two products of 64 and a uint8 fit into 16 bits too.

    >>> from neural_compressor.dtypes import dtype
    >>> integer_limits(TensorScheme(dtype("int8"), reduce_range=True)), 255 * (64 + 64) < 2**15
    ((-64, 64), True)
    """
    kind = scheme.dtype
    if not kind.is_integer:
        raise ConfigError(f"{kind.name} is not an integer type")
    low, high = int(kind.min), int(kind.max)
    if not scheme.reduce_range:
        return low, high
    if kind.bits == 1:
        raise ConfigError(f"reduce_range takes one bit from {kind.name}, which has no other; leave it off")
    return low // 2, -(low // 2) if scheme.symmetric and low < 0 else high // 2


def choose_qparams(low: Array, high: Array, scheme: TensorScheme) -> QParams:
    """Scale and zero point that map ``[low, high]`` onto the data type of ``scheme``.

    >>> from neural_compressor.dtypes import dtype
    >>> p = choose_qparams(-1.0, 2.0, TensorScheme(dtype("uint8"), symmetric=False))
    >>> round(float(p.scale), 6), int(p.zero_point)
    (0.011765, 85)
    """
    low = as_float32(low if is_array_api_obj(low) else np.asarray(low))
    high = like(high, low)
    xp = array_namespace(low)
    require_finite(low, high, "the range")
    if bool(xp.any(low > high)):
        raise QuantizationError("a range must have low <= high; were the two swapped?")
    return qparams_over(low, high, scheme)


def qparams_over(low: Array, high: Array, scheme: TensorScheme) -> QParams:
    """:func:`choose_qparams` of float32 arrays that are known to be finite, or whose values nobody can look at yet."""
    xp = array_namespace(low)
    if scheme.is_float:
        return QParams(None)
    kind = scheme.dtype
    if kind.is_integer:
        return _integer_symmetric(low, high, scheme) if scheme.symmetric else _integer_asymmetric(low, high, scheme)
    if not scheme.symmetric:
        raise ConfigError(f"{kind.name} has no zero point, so it cannot be asymmetric; use scheme 'sym'")
    magnitude = xp.maximum(xp.abs(low), xp.abs(high))
    if kind.scale_type is not None:
        scale, tensor_scale = block_scales(magnitude, kind, kind.scale_type)
        return QParams(scale, None, tensor_scale)
    if scheme.scaling is not None:
        return QParams(scheme.scaling.scale(magnitude, kind))
    return QParams(step_size(magnitude, kind.peak))


def _integer_symmetric(low: Array, high: Array, scheme: TensorScheme) -> QParams:
    xp = array_namespace(low)
    qmin, qmax = integer_limits(scheme)
    magnitude = xp.maximum(xp.abs(low), xp.abs(high))
    if qmin < 0:
        # Of one bit there are the codes -1 and 0, which mean -magnitude and 0.
        return QParams(step_size(magnitude, max(min(-qmin, qmax), 1)))
    negative = low < 0
    middle = (qmax + 1) // 2
    # Two levels around a zero point of 1 are -magnitude and 0, as for one signed bit.
    centred = step_size(magnitude, max((qmax - qmin) / 2, 1.0))
    scale = xp.where(negative, centred, step_size(magnitude, qmax))
    return QParams(scale, xp.astype(negative * middle, xp.int32))


def _integer_asymmetric(low: Array, high: Array, scheme: TensorScheme) -> QParams:
    xp = array_namespace(low)
    qmin, qmax = integer_limits(scheme)
    zero = xp.zeros_like(low)
    low, high = xp.minimum(low, zero), xp.maximum(high, zero)
    # Halves, because high - low may overflow where its half does not.
    scale = step_size(xp.astype(high * 0.5 - low * 0.5, low.dtype, copy=False), (qmax - qmin) / 2)
    zero_point = xp.clip(xp.round(qmin - low / scale), qmin, qmax)
    return QParams(scale, xp.astype(zero_point, xp.int32))


def to_steps(x: Array, scheme: TensorScheme, qparams: QParams) -> Array:
    """``x`` in units of its scales, laid out in parts."""
    parts = to_parts(x, scale_granularity(scheme))
    return parts if qparams.scale is None else parts / _step(scheme, qparams, tuple(x.shape))


def from_steps(steps: Array, scheme: TensorScheme, qparams: QParams, shape: tuple[int, ...]) -> Array:
    """What :func:`to_steps` undoes: values in the tensor's shape from parts in units of the scales."""
    values = steps if qparams.scale is None else steps * _step(scheme, qparams, shape)
    return from_parts(values, shape, scale_granularity(scheme))


def zero_points(scheme: TensorScheme, qparams: QParams, shape: tuple[int, ...]) -> Array | None:
    """Zero points as float32 that broadcast against the parts of a tensor of ``shape``; None where all are zero."""
    if qparams.zero_point is None:
        return None
    xp = array_namespace(qparams.zero_point)
    return xp.astype(against_parts(qparams.zero_point, shape, scale_granularity(scheme)), xp.float32)


def _step(scheme: TensorScheme, qparams: QParams, shape: tuple[int, ...]) -> Array:
    scale = against_parts(qparams.scale, shape, scale_granularity(scheme))
    return scale if qparams.tensor_scale is None else scale * qparams.tensor_scale
