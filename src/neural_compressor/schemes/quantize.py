"""Quantize a tensor as a scheme says, keep the codes or only their values."""

from __future__ import annotations

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.affine import QParams, choose_qparams, from_steps, integer_limits, to_steps, zero_points
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like
from neural_compressor.schemes.block_rounding import round_blocks
from neural_compressor.schemes.granularity import PER_TENSOR
from neural_compressor.schemes.grid import code_dtype, encode, nearest
from neural_compressor.schemes.quantized_array import QuantizedArray
from neural_compressor.schemes.ranges import from_parts, part_sums, require_finite, scale_granularity, value_range
from neural_compressor.schemes.scheme import TensorScheme


def quantize(x: Array, scheme: TensorScheme, low: Array | None = None, high: Array | None = None) -> QuantizedArray:
    """``x`` quantized over the range ``[low, high]``, by default its own.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> quantize(np.float32([-1.0, 0.0, 2.0]), TensorScheme(dtype("uint8"), symmetric=False)).codes.tolist()
    [0, 85, 255]
    """
    own = low is None and high is None
    return quantize_with(x, scheme, None if own else qparams_of(x, scheme, low, high))


def qparams_of(x: Array, scheme: TensorScheme, low: Array | None = None, high: Array | None = None) -> QParams:
    """Scales and zero points for ``x`` over ``[low, high]``, by default its own range.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> float(qparams_of(np.float32([-127.0, 3.0]), TensorScheme(dtype("int8"))).scale)
    1.0
    """
    if scheme.is_float:
        return QParams(None)
    if low is None or high is None:
        own = value_range(x, scale_granularity(scheme))
        require_finite(*own)
        low, high = (own[0] if low is None else low), (own[1] if high is None else high)
    found = choose_qparams(like(low, x), like(high, x), scheme)
    return _searched(x, scheme, found) if scheme.scaling is not None and scheme.scaling.value == "opt" else found


def _searched(x: Array, scheme: TensorScheme, start: QParams) -> QParams:
    """The scales of least squared error among those that the scheme's scaling tries, each part for itself."""
    assert scheme.scaling is not None
    x = as_float32(x)
    xp = array_namespace(x)
    best, least = start.scale, None
    for scale in scheme.scaling.candidates(start.scale):
        error = part_sums((x - round_values(x, scheme, QParams(scale))) ** 2, scale_granularity(scheme))
        if least is None:
            best, least = scale, error
            continue
        better = error < least
        best, least = xp.where(better, scale, best), xp.where(better, error, least)
    return QParams(best)


def quantize_with(x: Array, scheme: TensorScheme, qparams: QParams | None = None) -> QuantizedArray:
    """``x`` quantized with scales and zero points already known (from ``x`` itself where they are None)."""
    x, qparams = _checked(x, scheme, qparams)
    shape, kind = tuple(x.shape), scheme.dtype.element_type
    if scheme.dtype.is_float32:
        return QuantizedArray(x, None, None, scheme, shape)
    steps = to_steps(x, scheme, qparams)
    if scheme.dtype.is_integer:
        xp = array_namespace(x)
        codes = xp.astype(_integers(steps, scheme, zero_points(scheme, qparams, shape)), code_dtype(xp, kind))
    else:
        codes = encode(steps, kind, scheme.rounding)
    codes = from_parts(codes, shape, scale_granularity(scheme))
    return QuantizedArray(codes, qparams.scale, qparams.zero_point, scheme, shape, qparams.tensor_scale)


def fake_quantize(x: Array, scheme: TensorScheme, qparams: QParams | None = None) -> Array:
    """The float32 values that quantizing ``x`` and dequantizing gives, without going through codes.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> fake_quantize(np.float32([0.2, -1.3]), TensorScheme(dtype("int8")), QParams(np.float32(0.5))).tolist()
    [0.0, -1.5]
    """
    if qparams is None and scheme.dtype.scale_type is not None:
        x = as_float32(x)
        require_finite(*value_range(x, PER_TENSOR))
        return round_blocks(x, scheme)
    x, qparams = _checked(x, scheme, qparams)
    return round_values(x, scheme, qparams)


def round_values(x: Array, scheme: TensorScheme, qparams: QParams) -> Array:
    """:func:`fake_quantize` of a float32 array that is known to be finite, or whose values nobody can look at yet."""
    shape = tuple(x.shape)
    if scheme.dtype.is_float32:
        return x
    steps = to_steps(x, scheme, qparams)
    if scheme.dtype.is_integer:
        zero_point = zero_points(scheme, qparams, shape)
        steps = _integers(steps, scheme, zero_point)
        steps = steps if zero_point is None else steps - zero_point
    else:
        steps = nearest(steps, scheme.dtype.element_type, scheme.rounding)
    return from_steps(steps, scheme, qparams, shape)


def _integers(steps: Array, scheme: TensorScheme, zero_point: Array | None) -> Array:
    """Codes of an integer type, still as float32 numbers."""
    xp = array_namespace(steps)
    rounded = xp.round(steps)
    return xp.clip(rounded if zero_point is None else rounded + zero_point, *integer_limits(scheme))


def _checked(x: Array, scheme: TensorScheme, qparams: QParams | None) -> tuple[Array, QParams]:
    """``x`` as finite float32, and its parameters as arrays of the same library on the same device."""
    x = as_float32(x)
    if qparams is None and not scheme.is_float:
        qparams = qparams_of(x, scheme)  # which looks at every value, so that no second look is needed
    else:
        require_finite(*value_range(x, PER_TENSOR))
    if qparams is None or qparams.scale is None:
        if not scheme.is_float:
            raise QuantizationError(f"{scheme.dtype.name} needs a scale, and the parameters given have none")
        return x, QParams(None)
    xp = array_namespace(x)
    return x, QParams(
        like(qparams.scale, x),
        None if qparams.zero_point is None else xp.astype(like(qparams.zero_point, x), xp.int32),
        None if qparams.tensor_scale is None else like(qparams.tensor_scale, x),
    )
