"""Round to nearest: every weight goes to the closest value of its grid, on its own."""

from __future__ import annotations

from neural_compressor.algorithms.checks import checked_weight
from neural_compressor.algorithms.row_blocks import row_blocks
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.schemes import PerTensor, QParams, QuantizedArray, TensorScheme, quantize_with
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.ranges import scale_granularity


def rtn(
    weight: Array,
    scheme: TensorScheme,
    importance: Array | None = None,
    search: str | None = None,
    *,
    full_range: bool | None = None,
    ratio: float = 1.0,
) -> QuantizedArray:
    """``weight`` (outputs, inputs) rounded to the grid of ``scheme``.

    The options choose the scales, as :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams` says; ``ratio``
    then shrinks them, so that values outside are cut off.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> w = np.float32([[0.1, -0.52, 0.7]])
    >>> rtn(w, TensorScheme(dtype("int4"))).codes.tolist()
    [[-1, 6, -8]]
    """
    weight = checked_weight(weight, scheme)
    ranged = weight if ratio == 1 else weight * ratio
    qparams = weight_qparams(ranged, scheme, search=search, importance=importance, full_range=full_range)
    return round_with(weight, scheme, qparams)


def round_with(weight: Array, scheme: TensorScheme, qparams: QParams) -> QuantizedArray:
    """``weight`` rounded with scales already chosen, a few rows at a time so that temporaries stay small."""
    if isinstance(scale_granularity(scheme), PerTensor):
        return quantize_with(weight, scheme, qparams)
    xp = array_namespace(weight)
    scale: Array = qparams.scale
    parts = []
    for rows in row_blocks(weight):
        zero_point = None if qparams.zero_point is None else qparams.zero_point[rows]
        part = QParams(scale[rows], zero_point, qparams.tensor_scale)
        parts.append(quantize_with(weight[rows], scheme, part).codes)
    codes = parts[0] if len(parts) == 1 else xp.concat(parts)
    return QuantizedArray(codes, qparams.scale, qparams.zero_point, scheme, tuple(weight.shape), qparams.tensor_scale)
