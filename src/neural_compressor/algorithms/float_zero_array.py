"""Integer codes with a scale and a zero point that need not be an integer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from array_api_compat import array_namespace

from neural_compressor.schemes import QParams, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, as_float32
from neural_compressor.schemes.mapping import from_steps, to_steps
from neural_compressor.schemes.packing import packed_bytes
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts


@dataclass(frozen=True)
class FloatZeroArray:
    """``value = (code - zero) * scale``, with ``scale`` and ``zero`` float32 in the shape the granularity says.

    Kernels that add an offset to each group run it as it is.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> scheme = TensorScheme(dtype("uint2"), symmetric=False)
    >>> FloatZeroArray(np.uint8([[0, 3]]), np.float32(2.0), np.float32(0.25), scheme, (1, 2)).dequantize().tolist()
    [[-0.5, 5.5]]
    """

    codes: Array
    scale: Array
    zero: Array
    scheme: TensorScheme
    shape: tuple[int, ...]

    def dequantize(self) -> Array:
        """The values the codes stand for: float32, in the original shape."""
        xp = array_namespace(self.codes)
        granularity = scale_granularity(self.scheme)
        parts = to_parts(xp.astype(self.codes, xp.float32), granularity)
        steps = parts - against_parts(self.zero, self.shape, granularity)
        return from_steps(steps, self.scheme, QParams(self.scale), self.shape)

    def rounded(self, weight: Array) -> FloatZeroArray:
        """The same grid with the codes nearest to ``weight``."""
        xp = array_namespace(self.codes)
        granularity = scale_granularity(self.scheme)
        steps = to_steps(as_float32(weight), self.scheme, QParams(self.scale))
        codes = xp.round(steps + against_parts(self.zero, self.shape, granularity))
        codes = from_parts(xp.clip(codes, *integer_limits(self.scheme)), self.shape, granularity)
        return replace(self, codes=xp.astype(codes, self.codes.dtype))

    @property
    def nbytes_packed(self) -> int:
        """Bytes of codes packed row by row, with a float32 scale and zero point a group."""
        rows, columns = self.shape
        scales: int = math.prod(self.scale.shape)
        return rows * packed_bytes(columns, self.scheme.dtype.bits) + 8 * scales
