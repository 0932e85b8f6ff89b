"""Round to nearest: every weight goes to the closest value of its grid, on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PositiveFloat, model_validator

from neural_compressor.algorithms.catalogue import EXECUTOR, FullRange, Hadamard, LayerOptions, register_algorithm
from neural_compressor.algorithms.checks import checked_weight, group_size
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.hadamard import Rotation, rotated
from neural_compressor.algorithms.layer_result import LayerResult, rows_of
from neural_compressor.algorithms.matrix_parts import row_blocks
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.schemes import PerTensor, QParams, QuantizedArray, TensorScheme, quantize_with
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, in_order, in_runs
from neural_compressor.schemes.ranges import scale_granularity

Q = TypeVar("Q", bound=QuantizedArray | FloatZeroArray)
_GAINS = 0.5, 2.0  # farther off, hardly any code is left to tell from


class RTNOptions(LayerOptions):
    """The options of rounding to nearest."""

    full_range: FullRange = None
    search: Literal["mse"] | None = Field(
        default=None, description="how the range of each group is narrowed; None: not at all"
    )
    ratio: PositiveFloat = Field(default=1.0, description="factor that the range is shrunk by")
    importance: Annotated[bool, EXECUTOR] = Field(default=False, description="weigh the search with calibration data")
    hadamard: Hadamard = False

    @property
    def needs_statistics(self) -> bool:
        """Where inputs are weighed by data."""
        return self.importance

    @model_validator(mode="after")
    def _searched(self) -> RTNOptions:
        if self.importance and self.search is None:
            raise ValueError("importance: got True, and it weighs a search; set search='mse' with it")
        return self


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
    parts = [quantize_with(weight[rows], scheme, qparams.rows(rows)).codes for rows in row_blocks(weight)]
    codes = parts[0] if len(parts) == 1 else xp.concat(parts)
    return QuantizedArray(codes, qparams.scale, qparams.zero_point, scheme, tuple(weight.shape), qparams.tensor_scale)


@register_algorithm("rtn", options=RTNOptions)
def _quantize(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics | None = None,
    *,
    search: str | None,
    full_range: bool | None,
    ratio: float,
    rotation: Rotation | None = None,
) -> LayerResult:
    """Round to nearest; a search weighs each input with its mean square, or, where that is not known, keeps the gain."""
    importance, weight = None, rotated(weight, rotation)
    if statistics is not None and search is not None:
        importance = statistics.mean_square
        if rotation is not None:
            importance = array_namespace(importance).linalg.diagonal(rotation.apply_to_hessian(statistics.hessian))
    array = rtn(weight, scheme, importance, search, full_range=full_range, ratio=ratio)
    blind = search is not None and importance is None
    return LayerResult(keep_gain(array, weight) if blind else array, rotation=rotation)


def keep_gain(array: Q, weight: Array) -> Q:
    """``array`` with scales at which each part that has its own answers to ``weight`` as strongly as that: Σ w q = Σ w².

    Cut-off weights make a layer's outputs smaller in the mean, and the next layers do not forgive that as they do noise.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
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
        wanted, found = (xp.sum(in_runs(in_order(w * each), size), axis=-1) for each in (w, q))
        gain = xp.clip(wanted / xp.where(found > 0, found, xp.ones_like(found)), *_GAINS)
        parts.append(xp.where(found > 0, gain, xp.ones_like(gain)))
    scale: Array = array.scale
    return replace(array, scale=scale * xp.reshape(xp.concat(parts), scale.shape))


def _has_free_scales(scheme: TensorScheme) -> bool:
    """Whether scales are numbers of their own, one a row or group."""
    return scheme.dtype.scale_type is None and not isinstance(scale_granularity(scheme), PerTensor)
