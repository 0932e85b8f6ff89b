"""The scales of block formats: a power of two a block (OCP MX); an fp8 number a block and a float a tensor (NVFP4)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from neural_compressor.dtypes import DType
from neural_compressor.schemes.arrays import Array, array_namespace, like
from neural_compressor.schemes.grid import nearest, step_size

_EXPONENTS = range(-149, 128)
_POWERS = np.asarray([math.ldexp(1.0, e) for e in _EXPONENTS], dtype=np.float32)


def block_scales(
    magnitude: Array, kind: DType, scale_type: DType, tensor_scale: Array | None = None
) -> tuple[Array, Array | None]:
    """Scales, and tensor scale, for blocks whose largest absolute values are ``magnitude``.

    A ``tensor_scale`` that is known already, from other data or of other tensors too, is taken as it is.
    A block with NaN or Inf in it has no scale: it is NaN, and so are its values, as OCP MX has a code for that.

    >>> from neural_compressor.dtypes import dtype
    >>> block_scales(np.float32([6.0, 7.9, 0.3]), dtype("mxfp4"), dtype("e8m0"))[0].tolist()
    [1.0, 1.0, 0.0625]
    """
    peak = kind.element_type.peak
    if is_power_of_two_scale(scale_type):
        return _shared_exponent(magnitude, peak, scale_type), None
    xp = array_namespace(magnitude)
    wanted = magnitude / peak
    if kind.has_tensor_scale:
        tensor_scale = tensor_scale_over(xp.max(magnitude), kind, scale_type) if tensor_scale is None else tensor_scale
        wanted = wanted / tensor_scale
    rounded = storable_scale(wanted, scale_type)
    return _one_where_zero(rounded, magnitude), tensor_scale


def tensor_scale_over(magnitude: Array, kind: DType, scale_type: DType) -> Array:
    """The scale of a whole tensor, at which the block of its largest value has the largest scale there is.

    >>> from neural_compressor.dtypes import dtype
    >>> float(tensor_scale_over(np.float32(2688.0), dtype("nvfp4"), dtype("fp8_e4m3")))
    1.0
    """
    # Files hold its inverse. One that is an inverse itself comes back from there as it was, in the last digit too.
    scale = step_size(magnitude, scale_type.max * kind.element_type.peak)
    one = array_namespace(scale).ones_like(scale)
    return one / (one / scale)


def storable_scale(scale: Array, scale_type: DType) -> Array:
    """The nearest scales that can be stored; a block that is small beside its tensor must not get one of zero."""
    return nearest(array_namespace(scale).clip(scale, _positive(scale_type)[0], None), scale_type)


@lru_cache(maxsize=64)
def is_power_of_two_scale(kind: DType) -> bool:
    """Whether scales are bare exponents (e8m0): powers of two, without a zero."""
    return 0.0 not in kind.grid and all(math.frexp(value)[0] == 0.5 for value in _positive(kind))


@lru_cache(maxsize=64)
def _positive(kind: DType) -> tuple[float, ...]:
    return tuple(value for value in kind.grid if value > 0)


def _shared_exponent(magnitude: Array, peak: float, scale_type: DType) -> Array:
    """OCP MX v1.0, section 6.3: the exponent of the largest value less that of the element type's largest."""
    xp = array_namespace(magnitude)
    powers = like(_POWERS, magnitude)
    # Counting powers of two is exact where log2 is not.
    floor_log2 = xp.searchsorted(powers, magnitude, side="right") - 1 + _EXPONENTS[0]
    largest_power = math.floor(math.log2(peak))
    lowest = math.floor(math.log2(_positive(scale_type)[0]))
    highest = math.floor(math.log2(scale_type.max))
    exponent = xp.clip(floor_log2 - largest_power, lowest, highest)
    scale = xp.reshape(xp.take(powers, xp.reshape(exponent - _EXPONENTS[0], (-1,)), axis=0), magnitude.shape)
    return _one_where_zero(scale, magnitude)


def _one_where_zero(scale: Array, magnitude: Array) -> Array:
    """``scale``, but 1 where all values are zero and NaN where some are not finite."""
    xp = array_namespace(scale)
    return xp.where(magnitude == 0, xp.ones_like(scale), scale + (magnitude - magnitude))
