"""Scales that keep the gain of a layer whose codes were chosen without data."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from array_api_compat import device

from neural_compressor.algorithms.checks import group_size
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.layer_result import rows_of
from neural_compressor.algorithms.row_blocks import row_blocks
from neural_compressor.dtypes import BlockType
from neural_compressor.schemes import PerTensor, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, in_order

_GAINS = 0.5, 2.0  # farther off, hardly any code is left to tell from


Q = TypeVar("Q", bound=QuantizedArray | FloatZeroArray)


def keep_gain(array: Q, weight: Array) -> Q:
    """``array`` with scales at which each part that has its own answers to ``weight`` as strongly as that: Σ w q = Σ w².

    Cut-off weights make a layer's outputs smaller in the mean, and the next layers do not forgive that as they do noise.

    >>> import numpy as np
    >>> from neural_compressor.algorithms.rtn import rtn
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup, TensorScheme
    >>> w = np.float32([[0.2, 0.2, 1.0]])
    >>> q = keep_gain(rtn(w, TensorScheme(dtype("int2"), granularity=PerGroup(3))), w)
    >>> round(float((w * q.dequantize()).sum() - (w * w).sum()), 6)
    0.0
    """
    if not _has_free_scales(array.scheme):
        return array
    xp, size = array_namespace(weight), group_size(array.scheme, weight.shape[1])
    parts = []
    for rows in row_blocks(weight):
        w, q = as_float32(weight[rows, :]), rows_of(array, rows).dequantize()
        wanted, found = _grouped(w * w, size), _grouped(w * q, size)
        gain = xp.clip(wanted / xp.where(found > 0, found, xp.ones_like(found)), *_GAINS)
        parts.append(xp.where(found > 0, gain, xp.ones_like(gain)))
    scale: Array = array.scale
    return replace(array, scale=scale * xp.reshape(xp.concat(parts), scale.shape))


def _has_free_scales(scheme: TensorScheme) -> bool:
    """Whether scales are numbers of their own, one a row or group."""
    return not isinstance(scheme.dtype, BlockType) and not isinstance(scheme.granularity, PerTensor)


def _grouped(x: Array, size: int) -> Array:
    """Sums over groups of ``size`` columns, the last of them maybe shorter."""
    xp = array_namespace(x)
    rows, columns = x.shape
    x = in_order(x)
    missing = -columns % size
    if missing:
        x = xp.concat([x, xp.zeros((rows, missing), dtype=x.dtype, device=device(x))], axis=1)
    return xp.sum(xp.reshape(x, (rows, -1, size)), axis=-1)
