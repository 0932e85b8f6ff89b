"""Between the values of a tensor and the grid its codes live on: scales and zero points, laid out in parts."""

from __future__ import annotations

from neural_compressor.schemes.affine import QParams
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts
from neural_compressor.schemes.scheme import TensorScheme


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
