"""The result of quantizing the weight of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from array_api_compat import device

from neural_compressor.algorithms.checks import group_size
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.hadamard import Rotation
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import QuantizedArray
from neural_compressor.schemes.arrays import Array, array_namespace


@dataclass(frozen=True)
class LayerResult:
    """A quantized weight, and what a layer must do to its inputs before it multiplies with it.

    The layer computes ``x -> x / input_scale -> rotation -> x[..., order]`` as far as these are given, then
    multiplies with the values of ``array``.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup, TensorScheme, quantize
    >>> q = quantize(np.float32([[7.0, -3.0, 1.0]]), TensorScheme(dtype("int4"), granularity=PerGroup(2)))
    >>> result = LayerResult(q, order=np.asarray([2, 0, 1]))
    >>> result.dequantize().tolist(), result.g_idx.tolist()
    ([[-3.0, 1.0, 7.0]], [0, 1, 0])
    """

    array: QuantizedArray | FloatZeroArray
    order: Array | None = None
    input_scale: Array | None = None
    rotation: Rotation | None = None

    @property
    def g_idx(self) -> Array:
        """The number of the scale of each input, int32: what checkpoints with an input order store."""
        xp = array_namespace(self.array.codes)
        inputs = self.array.shape[1]
        places = xp.arange(inputs, dtype=xp.int32, device=device(self.array.codes))
        groups = places // group_size(self.array.scheme, inputs)
        return groups if self.order is None else xp.take(groups, xp.argsort(self.order), axis=0)

    def dequantize(self) -> Array:
        """The weight the layer has in effect: float32, for inputs as they come."""
        weight = self.array.dequantize()
        xp = array_namespace(weight)
        if self.order is not None:
            weight = xp.take(weight, xp.argsort(self.order), axis=1)
        if self.rotation is not None:
            weight = self.rotation.undo(weight)
        return weight if self.input_scale is None else weight / self.input_scale

    def split(self, rows: Sequence[int]) -> list[LayerResult]:
        """Results for weights of ``rows`` outputs each that were stacked and quantized as one.

        Layers that share an input share its statistics: quantized as one they cost less.
        """
        if sum(rows) != self.array.shape[0]:
            raise QuantizationError(f"{self.array.shape[0]} rows cannot be split into {list(rows)}")
        if self.array.scheme.scales is not None or self.array.scheme.zeros is not None:
            raise QuantizationError("quantized scales run on from row to row; split the weight before double_quant")
        results, start = [], 0
        for count in rows:
            results.append(replace(self, array=rows_of(self.array, slice(start, start + count))))
            start += count
        return results


def rows_of(array: QuantizedArray | FloatZeroArray, rows: slice) -> QuantizedArray | FloatZeroArray:
    """Some rows of a quantized weight whose scales are floats."""

    def cut(parameter: Array | None) -> Array | None:
        return parameter if parameter is None or parameter.ndim == 0 else parameter[rows]

    shape = (rows.stop - rows.start, *array.shape[1:])
    if isinstance(array, FloatZeroArray):
        return replace(array, codes=array.codes[rows], scale=cut(array.scale), zero=cut(array.zero), shape=shape)
    return replace(
        array, codes=array.codes[rows], scale=cut(array.scale), zero_point=cut(array.zero_point), shape=shape
    )
