"""Quantize the scales and float zero points of a quantized weight, a run of them at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.rtn import round_with
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PerTensor, QuantizedArray, TensorScheme, quantize
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.ranges import scale_granularity


def double_quant(
    array: QuantizedArray | FloatZeroArray,
    scales: TensorScheme | None,
    zeros: TensorScheme | None = None,
    weight: Array | None = None,
) -> QuantizedArray | FloatZeroArray:
    """``array`` with its scales and float zero points quantized as the schemes say, for instance uint8 in runs of 256.

    What has no scheme stays in float. Integer zero points have no more bits than the weight already and stay. With the
    ``weight`` the array was made from, weights are rounded again to the grid that the new numbers span.

    >>> import numpy as np
    >>> from neural_compressor.algorithms.rtn import rtn
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> w = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(8, 512)
    >>> q = rtn(w, TensorScheme(dtype("int4"), granularity=PerGroup(32)))
    >>> q.nbytes_packed, double_quant(q, TensorScheme(dtype("uint8"), False, PerGroup(256))).nbytes_packed
    (2560, 2181)
    """
    wanted = {name: how for name, how in (("scale", scales), ("zero", zeros)) if how is not None}
    if not wanted:
        return array
    scheme = array.scheme
    if scheme.is_float or scheme.dtype.scale_type or isinstance(scale_granularity(scheme), PerTensor):
        raise QuantizationError(
            f"a {scheme.dtype.name} weight quantized {scheme.granularity.name} has no float32 scales worth "
            "quantizing; double quantization is for per_group and per_channel weights"
        )
    if zeros is not None and not isinstance(array, FloatZeroArray):
        raise QuantizationError("the zero points of this weight are integers of its own bits; leave them as they are")
    if scheme.scales is not None or scheme.zeros is not None:
        raise QuantizationError("the scales of this weight are quantized already")
    codes: dict[str, Any] = {name: quantize_parameter(getattr(array, name), how) for name, how in wanted.items()}
    new = replace(array, **codes, scheme=replace(scheme, scales=scales, zeros=zeros))
    if weight is None:
        return new
    if isinstance(new, FloatZeroArray):
        return new.rounded(weight)
    return replace(new, codes=round_with(weight, scheme, new.qparams).codes)


def quantize_parameter(values: Array, scheme: TensorScheme) -> QuantizedArray:
    """Scales (or float zero points) as one long row of codes; what is not zero does not become zero.

    A group whose scale was rounded to zero would lose all its weights, where one step up costs little.
    """
    if scheme.is_float or scheme.dtype.block_size is not None:
        raise ConfigError(f"scales are quantized to an integer, float or codebook type, not {scheme.dtype.name}")
    xp = array_namespace(values)
    row = xp.reshape(values, (1, -1))
    quantized = quantize(row, scheme)
    if not scheme.dtype.is_integer:
        return quantized
    lost = xp.logical_and(quantized.dequantize() == 0, row != 0)
    low, high = integer_limits(scheme)
    moved = xp.clip(xp.astype(quantized.codes, xp.int32) + xp.astype(xp.sign(row), xp.int32), low, high)
    return replace(quantized, codes=xp.where(lost, xp.astype(moved, quantized.codes.dtype), quantized.codes))
