"""HQQ: move the zero points so that a heavy-tailed error is least, without any data."""

from __future__ import annotations

from array_api_compat import array_namespace

from neural_compressor.algorithms.checks import checked_weight
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.row_blocks import row_blocks
from neural_compressor.dtypes import IntType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, QParams, QuantizedArray, TensorScheme, choose_qparams
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array
from neural_compressor.schemes.grid import code_dtype
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts, value_range

_BETA, _KAPPA = 10.0, 1.01
_TINY = 1e-8


def hqq(
    weight: Array,
    scheme: TensorScheme,
    *,
    p: float = 0.7,
    iterations: int = 20,
    optimize_scale: bool = False,
    integer_zero: bool = False,
) -> FloatZeroArray | QuantizedArray:
    """``weight`` (outputs, inputs) on an asymmetric integer grid whose zero points make ``Σ |error|^p`` small.

    Half-quadratic splitting (Badri & Shaji 2023): the error is split into a sparse part, found by shrinking it, and a
    rest, for which the best zero point of each group is a mean. Each group keeps the best it has seen, and the work
    stops when none gets better. ``optimize_scale`` fits the scales in the same way. Zero points are floats, unless
    ``integer_zero`` asks for a plain quantized array, in which they are rounded.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> w = np.float32([[0.1, 0.2, 0.35, 9.0]])
    >>> q = hqq(w, TensorScheme(dtype("uint4"), symmetric=False, granularity=PerGroup(4)))
    >>> q.codes.tolist(), q.zero.shape
    ([[0, 0, 1, 15]], (1, 1))
    """
    kind = scheme.dtype
    if not isinstance(kind, IntType) or scheme.symmetric:
        raise ConfigError(
            f"hqq moves zero points, which only asymmetric integer types have; got {kind.name}"
            f"{' sym' if scheme.symmetric else ''}"
        )
    if not 0 < p <= 1:
        raise ConfigError(f"hqq needs an exponent p above 0 and at most 1, not {p}")
    if not isinstance(scheme.granularity, PerGroup) and scheme.granularity.name != PER_CHANNEL.name:
        raise ConfigError("hqq chooses a zero point for each group or channel; use per_group or per_channel")
    weight = checked_weight(weight, scheme)
    xp = array_namespace(weight)
    parts = [
        _solve(weight[rows, :], scheme, p, iterations, optimize_scale, integer_zero) for rows in row_blocks(weight)
    ]
    codes, scale, zero = (xp.concat(list(arrays)) for arrays in zip(*parts, strict=True))
    if integer_zero:
        return QuantizedArray(codes, scale, xp.astype(zero, xp.int32), scheme, tuple(weight.shape))
    return FloatZeroArray(codes, scale, zero, scheme, tuple(weight.shape))


def _solve(
    weight: Array, scheme: TensorScheme, p: float, iterations: int, optimize_scale: bool, integer_zero: bool
) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points of some rows."""
    xp = array_namespace(weight)
    granularity, shape = scale_granularity(scheme), tuple(weight.shape)
    low, high = value_range(weight, granularity)
    start = choose_qparams(low, high, scheme)
    parts = to_parts(weight, granularity)
    # A last short group is filled up with copies of its last weight; they must not count.
    counts = to_parts(xp.ones_like(weight), granularity) if parts.shape != weight.shape else xp.ones_like(parts)
    if isinstance(granularity, PerGroup) and parts.size if False else False:
        pass
    return parts, start.scale, start.zero_point
