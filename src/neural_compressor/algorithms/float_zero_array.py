"""Integer codes with a scale and a zero point that need not be an integer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from neural_compressor.schemes import QParams, QuantizedArray, TensorScheme
from neural_compressor.schemes.affine import from_steps, integer_limits, to_steps
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.packing import packed_bytes
from neural_compressor.schemes.quantized_array import parameter_values, require_stored_as
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts


@dataclass(frozen=True)
class FloatZeroArray:
    """``value = (code - zero) * scale``, with ``scale`` and ``zero`` float32 in the shape the granularity says.

    Where ``scheme.scales`` or ``scheme.zeros`` says how, they are quantized themselves. Kernels that add an offset to
    each group run it as it is.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> scheme = TensorScheme(dtype("uint2"), symmetric=False)
    >>> FloatZeroArray(np.uint8([[0, 3]]), np.float32(2.0), np.float32(0.25), scheme, (1, 2)).dequantize().tolist()
    [[-0.5, 5.5]]
    """

    codes: Array
    scale: Array | QuantizedArray
    zero: Array | QuantizedArray
    scheme: TensorScheme
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require_stored_as("scales", self.scale, self.scheme.scales)
        require_stored_as("zero points", self.zero, self.scheme.zeros)

    def _scale_and_zero(self) -> tuple[Array, Array]:
        """As numbers, the zeros shaped to broadcast against the parts of the tensor."""
        scale, zero = (parameter_values(each, self.scheme, self.shape) for each in (self.scale, self.zero))
        return scale, against_parts(zero, self.shape, scale_granularity(self.scheme))

    def dequantize(self) -> Array:
        """The values the codes stand for: float32, in the original shape."""
        xp = array_namespace(self.codes)
        scale, zero = self._scale_and_zero()
        steps = to_parts(xp.astype(self.codes, xp.float32), scale_granularity(self.scheme)) - zero
        return from_steps(steps, self.scheme, QParams(scale), self.shape)

    def rounded(self, weight: Array) -> FloatZeroArray:
        """The same grid with the codes nearest to ``weight``."""
        xp = array_namespace(self.codes)
        scale, zero = self._scale_and_zero()
        codes = xp.round(to_steps(as_float32(weight), self.scheme, QParams(scale)) + zero)
        codes = from_parts(xp.clip(codes, *integer_limits(self.scheme)), self.shape, scale_granularity(self.scheme))
        return replace(self, codes=xp.astype(codes, self.codes.dtype))

    @property
    def nbytes_packed(self) -> int:
        """Bytes of codes packed row by row, and of a scale and zero point a group."""
        rows, columns = self.shape
        parameters = (
            each.nbytes_packed if isinstance(each, QuantizedArray) else 4 * math.prod(each.shape)
            for each in (self.scale, self.zero)
        )
        return rows * packed_bytes(columns, self.scheme.dtype.bits) + sum(parameters)
