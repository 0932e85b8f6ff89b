"""Quantize the scales and float zero points of a quantized weight, a run of them at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from array_api_compat import array_namespace

from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.rtn import round_with
from neural_compressor.dtypes import BlockType, IntType
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import QuantizedArray, TensorScheme, quantize
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array


@dataclass(frozen=True)
class DoubleQuantized:
    """A quantized weight whose scales, float zero points or both are themselves quantized.

    ``array`` is the weight with the numbers that ``scale`` and ``zero`` stand for. Those hold them as one long row of
    codes, because a row of a weight has few; what is None is stored as it is.
    """

    array: QuantizedArray | FloatZeroArray
    scale: QuantizedArray | None = None
    zero: QuantizedArray | None = None

    def dequantize(self) -> Array:
        """The values of the weight: float32, in its shape."""
        return self.array.dequantize()

    @property
    def nbytes_packed(self) -> int:
        """Bytes of the packed form, scales included."""
        small = [part for part in (self.scale, self.zero) if part is not None]
        return self.array.nbytes_packed + sum(part.nbytes_packed - 4 * math.prod(part.shape) for part in small)


def double_quant(
    array: QuantizedArray | FloatZeroArray,
    scheme: TensorScheme,
    weight: Array | None = None,
    *,
    scale: bool = True,
    zero: bool = True,
) -> DoubleQuantized:
    """``array`` with its scales and float zero points quantized as ``scheme`` says, for instance uint8 in runs of 256.

    With the ``weight`` the array was made from, weights are rounded again to the grid that the new numbers span. Integer
    zero points have no more bits than the weight already and stay.

    >>> import numpy as np
    >>> from neural_compressor.algorithms.rtn import rtn
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> w = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(8, 512)
    >>> q = rtn(w, TensorScheme(dtype("int4"), granularity=PerGroup(32)))
    >>> q.nbytes_packed, double_quant(q, TensorScheme(dtype("uint8"), False, PerGroup(256))).nbytes_packed
    (2560, 2181)
    """
    if array.scale is None or array.scale.ndim == 0 or isinstance(array.scheme.dtype, BlockType):
        raise QuantizationError(
            f"a {array.scheme.dtype.name} weight quantized {array.scheme.granularity.name} has no float32 scales worth "
            "quantizing; double quantization is for per_group and per_channel weights"
        )
    xp = array_namespace(array.scale)
    scales = quantize_parameter(array.scale, scheme) if scale else None
    if scales is not None:
        array = replace(array, scale=xp.reshape(scales.dequantize(), array.scale.shape))
    zeros = quantize_parameter(array.zero, scheme) if zero and isinstance(array, FloatZeroArray) else None
    if zeros is not None and isinstance(array, FloatZeroArray):
        array = replace(array, zero=xp.reshape(zeros.dequantize(), array.zero.shape))
    if weight is not None:
        if isinstance(array, FloatZeroArray):
            array = array.rounded(weight)
        else:
            array = round_with(weight, array.scheme, array.qparams)
    return DoubleQuantized(array, scales, zeros)


def quantize_parameter(values: Array, scheme: TensorScheme) -> QuantizedArray:
    """Scales (or float zero points) as one long row of codes; what is not zero does not become zero.

    A group whose scale was rounded to zero would lose all its weights, where one step up costs little.
    """
    if scheme.is_float or isinstance(scheme.dtype, BlockType):
        raise ConfigError(f"scales are quantized to an integer, float or codebook type, not {scheme.dtype.name}")
    xp = array_namespace(values)
    row = xp.reshape(values, (-1,))
    quantized = quantize(row, scheme)
    if not isinstance(scheme.dtype, IntType):
        return quantized
    lost = xp.logical_and(quantized.dequantize() == 0, row != 0)
    low, high = integer_limits(scheme)
    step = xp.astype(xp.sign(row), quantized.codes.dtype)
    moved = xp.clip(xp.astype(quantized.codes, xp.int32) + xp.astype(step, xp.int32), low, high)
    return replace(quantized, codes=xp.where(lost, xp.astype(moved, quantized.codes.dtype), quantized.codes))
