"""The scales of block formats: a power of two a block (OCP MX); an fp8 number a block and a float a tensor (NVFP4)."""

from __future__ import annotations

import math

import numpy as np

from neural_compressor.dtypes import BlockType, FloatType
from neural_compressor.schemes.arrays import Array, array_namespace, like
from neural_compressor.schemes.grid import nearest
from neural_compressor.schemes.step import step_size

_EXPONENTS = range(-149, 128)
_POWERS = np.asarray([math.ldexp(1.0, e) for e in _EXPONENTS], dtype=np.float32)


def block_scales(magnitude: Array, kind: BlockType) -> tuple[Array, Array | None, Array | None]:
    """Scale, zero point (none) and tensor scale for blocks whose largest absolute values are ``magnitude``.

    >>> from neural_compressor.dtypes import dtype
    >>> block_scales(np.float32([6.0, 7.9, 0.3]), dtype("mxfp4"))[0].tolist()
    [1.0, 1.0, 0.0625]
    """
    if is_power_of_two_scale(kind.scale):
        return _shared_exponent(magnitude, kind), None, None
    xp = array_namespace(magnitude)
    if not kind.tensor_scale:
        tensor_scale = None
        wanted = magnitude / kind.element.max
    else:
        tensor_scale = step_size(xp.max(magnitude), kind.scale.max * kind.element.max)
        wanted = magnitude / kind.element.max / tensor_scale
    # A block that is small beside its tensor must not get a scale of zero.
    floor = next(v for v in kind.scale.positive if v > 0)
    rounded = nearest(xp.clip(wanted, floor, None), kind.scale)
    return xp.where(magnitude > 0, rounded, xp.ones_like(rounded)), None, tensor_scale


def is_power_of_two_scale(kind: FloatType) -> bool:
    """Whether the scale type is a bare exponent (e8m0)."""
    return kind.mantissa == 0 and not kind.subnormals


def _shared_exponent(magnitude: Array, kind: BlockType) -> Array:
    """OCP MX v1.0, section 6.3: the exponent of the largest value less that of the element type's largest."""
    xp = array_namespace(magnitude)
    powers = like(_POWERS, magnitude)
    # Counting powers of two is exact where log2 is not.
    floor_log2 = xp.searchsorted(powers, magnitude, side="right") - 1 + _EXPONENTS[0]
    largest_power = math.floor(math.log2(kind.element.max))
    lowest = math.floor(math.log2(kind.scale.positive[0]))
    highest = math.floor(math.log2(kind.scale.max))
    exponent = xp.clip(floor_log2 - largest_power, lowest, highest)
    scale = xp.reshape(xp.take(powers, xp.reshape(exponent - _EXPONENTS[0], (-1,)), axis=0), magnitude.shape)
    return xp.where(magnitude > 0, scale, xp.ones_like(scale))
