"""Integer tensors as Q/DQ nodes and integer ops take them: codes with scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.graph.queries import clip_bounds
from neural_compressor.onnx.graph.sum_order import SumOrder
from neural_compressor.schemes import (
    PER_TENSOR,
    PerChannel,
    QParams,
    TensorScheme,
    choose_qparams,
    in_pairs,
    qparams_of,
    quantize_with,
)
from neural_compressor.schemes.pair_safe import pair_safe_codes, pair_safe_scales

EIGHT_BITS = ("int8", "uint8")
"""The types that integer kernels compute with."""
ACTIVATIONS = (*EIGHT_BITS, "int16", "uint16")
STORED = (*ACTIVATIONS, "int4", "uint4")
"""The integer types of Q/DQ nodes."""
_LARGEST_INT32 = 2**31 - 1

_AT_ONCE = 1 << 20
"""How many numbers are turned into integers at once: on the way there are some floats for each."""


@dataclass(frozen=True, eq=False)
class IntegerParams:
    """``value = (code - zero_point) * scale``, one of each or one a channel of ``axis``; ``scheme`` says the rest.

    ``order`` is there where no two neighbours in the sums of a kernel may be too large together.
    """

    scheme: TensorScheme
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    order: SumOrder | None = None

    def codes(self, array: np.ndarray) -> np.ndarray:
        """``array`` in integers."""
        if self.order is not None:
            matrix = self.order.rows(array)
            return self.order.restored(pair_safe_codes(matrix, self.scale, in_pairs(matrix.shape[1])), array.shape)
        found = np.empty(array.shape, self.zero_point.dtype)
        step = max(1, _AT_ONCE // max(1, array[:1].size)) if array.ndim else 1
        for start in range(0, len(array) if array.ndim else 1, step):
            rows = slice(start, start + step) if array.ndim else ()
            own = rows if self.axis == 0 else ...
            qparams = QParams(self.scale[own], self.zero_point[own].astype(np.int32))
            found[rows] = np.asarray(quantize_with(array[rows], self.scheme, qparams).codes)
        return found

    def values(self, codes: np.ndarray) -> np.ndarray:
        """What ``codes`` stand for."""
        shape = [-1 if i == self.axis else 1 for i in range(codes.ndim)] if self.scale.ndim else []
        zero_point = self.zero_point.astype(np.float32).reshape(shape)
        return np.asarray((codes.astype(np.float32) - zero_point) * self.scale.reshape(shape))

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and largest value there is an integer for."""
        lowest, highest = np.iinfo(self.zero_point.dtype).min, np.iinfo(self.zero_point.dtype).max
        zero_point = int(self.zero_point)
        return (lowest - zero_point) * float(self.scale), (highest - zero_point) * float(self.scale)


def activation_params(low: float, high: float, scheme: TensorScheme) -> IntegerParams:
    """Scale and zero point of a tensor whose values are in ``[low, high]``.

    >>> from neural_compressor.dtypes import dtype
    >>> int(activation_params(-1.0, 3.0, TensorScheme(dtype("uint8"), symmetric=False)).zero_point)
    64
    """
    return _params(choose_qparams(low, high, scheme), scheme, None)


def weight_params(
    weight: np.ndarray,
    scheme: TensorScheme,
    axis: int | None,
    least_scale: np.ndarray | None = None,
    order: SumOrder | None = None,
) -> IntegerParams:
    """Scales and zero points of a constant, one a channel of ``axis`` where the scheme says so.

    ``order`` is how a kernel that adds in pairs goes over it: a scheme that is safe in pairs leaves it no sum to overflow.
    """
    if axis is not None and scheme.granularity != PER_TENSOR and scheme.symmetric and scheme.dtype.name == "uint8":
        # Kernels want one zero point for all channels, also for those that have no negative numbers.
        return unsigned(weight_params(weight, replace(scheme, dtype=dtype("int8")), axis, least_scale))
    return _weight_params(weight, scheme, axis, least_scale, order)


def quantized_array(
    array: np.ndarray, scheme: TensorScheme, axis: int, order: SumOrder | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points of ``array``: one of these, or one for each place along ``axis``."""
    params = _weight_params(array, scheme, axis, None, order)
    return params.codes(array), params.scale, params.zero_point


def _weight_params(
    weight: np.ndarray,
    scheme: TensorScheme,
    axis: int | None,
    least_scale: np.ndarray | None,
    order: SumOrder | None,
) -> IntegerParams:
    axis = None if scheme.granularity == PER_TENSOR else axis
    scheme = replace(scheme, granularity=PER_TENSOR if axis is None else PerChannel(axis))
    params = _params(qparams_of(weight, scheme), scheme, axis)
    if least_scale is not None:
        needed = np.max(least_scale, initial=0.0) if axis is None else least_scale
        params = replace(params, scale=np.maximum(params.scale, needed).astype(np.float32))
    if order is None or not scheme.pair_safe:
        return params
    rows = order.rows(weight)
    scale = np.asarray(pair_safe_scales(rows, params.scale, in_pairs(rows.shape[1])))
    return replace(params, scale=scale, order=order)


def unsigned(params: IntegerParams) -> IntegerParams:
    """The same numbers as those of int8 ``params``, counted from -128."""
    zero_point = (params.zero_point.astype(np.int32) + 128).astype(np.uint8)
    return replace(
        params, scheme=replace(params.scheme, dtype=dtype("uint8"), reduce_range=False), zero_point=zero_point
    )


def least_weight_scale(bias: np.ndarray, input_scale: np.ndarray) -> np.ndarray:
    """The scale a weight must have for the bias to fit into 32 bits at the scale of the products."""
    largest = np.abs(bias.astype(np.float64))
    if bias.ndim > 1:
        largest = largest.reshape(-1, bias.shape[-1]).max(axis=0)
    # A little more than enough, as scales are rounded to float32.
    return np.asarray(largest * 1.001 / (float(input_scale) * _LARGEST_INT32))


def bias_codes(bias: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """``bias`` in 32-bit integers of ``scale``, None where they are too few."""
    codes = np.round(bias.astype(np.float64) / scale.astype(np.float64))
    return codes.astype(np.int32) if (np.abs(codes) <= _LARGEST_INT32).all() else None


def _params(qparams: QParams, scheme: TensorScheme, axis: int | None) -> IntegerParams:
    scale = np.asarray(qparams.scale, dtype=np.float32)
    zero_point = np.zeros(scale.shape) if qparams.zero_point is None else np.asarray(qparams.zero_point)
    return IntegerParams(scheme, scale, zero_point.astype(ir.DataType[scheme.dtype.name.upper()].numpy()), axis)


def cuts_off(params: IntegerParams, clip: ir.Node) -> bool:
    """Whether a quantizer keeps values within the bounds of ``clip`` by itself, to within half a step."""
    (low, high), (least, most) = params.limits, clip_bounds(clip)
    slack = float(params.scale) / 2
    return low >= least - slack and high <= most + slack


class IntegerTensor(NamedTuple):
    """Codes with their scale and zero point, all in the graph; a zero point that is 0 may be left out."""

    codes: ir.Value
    scale: ir.Value
    zero: ir.Value | None = None

    @property
    def dtype(self) -> ir.DataType | None:
        """The type of the codes, as far as the zero point tells it."""
        return None if self.zero is None else self.zero.dtype

    @property
    def params(self) -> list[ir.Value | None]:
        """Scale and zero point."""
        return [self.scale, self.zero]
