"""HQQ: move the zero points so that a heavy-tailed error is least, without any data."""

from __future__ import annotations

from typing import Annotated, Any

from array_api_compat import device
from pydantic import Field, PositiveInt

from neural_compressor.algorithms.catalogue import LayerOptions, register_algorithm
from neural_compressor.algorithms.checks import checked_weight, group_size
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.hadamard import Rotation, rotated
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.matrix_parts import row_blocks
from neural_compressor.algorithms.rtn import keep_gain
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerTensor, QuantizedArray, TensorScheme, choose_qparams, value_range
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace, in_order, in_runs
from neural_compressor.schemes.grid import code_dtype
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_shape, to_parts

_BETA, _KAPPA = 10.0, 1.01
_TINY = 1e-8
_WORTH = 1 - 1e-5
_STILL = 1e-5


class HQQOptions(LayerOptions):
    """The options of HQQ."""

    p: Annotated[float, Field(gt=0, le=1)] = Field(default=0.7, description="exponent of the error that is made small")
    iterations: PositiveInt = Field(default=20, description="steps at most")
    optimize_scale: bool = Field(default=True, description="fit the scales too, not the zero points alone")
    integer_zero: bool | None = Field(
        default=None, description="zero points that are integers; None: in ONNX models, where others cost a product"
    )


def hqq(weight: Array, scheme: TensorScheme, **options: Any) -> FloatZeroArray | QuantizedArray:
    """``weight`` (outputs, inputs) on an asymmetric integer grid whose zero points make ``Σ |error|^p`` small.

    Half-quadratic splitting (Badri & Shaji 2023): the error is split into a sparse part, found by shrinking it, and a
    rest, for which the best zero point of each group is a mean. Each group keeps the best it has seen, and the work
    stops when none gets better. Errors are taken in steps of the grid, so that the size of the weights does not matter.

    Beyond the paper, ``optimize_scale`` fits the scales in the same way, and nothing is kept that makes the fourth power
    of a group's error larger than plain rounding does: the largest weights are those that matter in some models. Zero
    points are floats, unless ``integer_zero`` asks for a plain quantized array: they are rounded then, and scales fitted
    once more to them and their neighbours.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> w = np.float32([[0.1, 0.2, 0.35, 9.0]])
    >>> q = hqq(w, TensorScheme(dtype("uint4"), symmetric=False, granularity=PerGroup(4)))
    >>> q.codes.tolist(), q.zero.shape
    ([[0, 0, 1, 15]], (1, 1))
    """
    read = HQQOptions.of_function(options)
    kind = scheme.dtype
    if not kind.is_integer or scheme.symmetric:
        raise ConfigError(
            f"hqq moves zero points, which only asymmetric integer types have; got {kind.name}"
            f"{' sym' if scheme.symmetric else ''}"
        )
    if isinstance(scheme.granularity, PerTensor):
        raise ConfigError("hqq chooses a zero point for each group or channel; use per_group or per_channel")
    weight = checked_weight(weight, scheme)
    xp = array_namespace(weight)
    solved = [_solve(in_order(weight[rows, :]), scheme, read) for rows in row_blocks(weight)]
    codes, scale, zero = (xp.concat(list(parts)) for parts in zip(*solved, strict=True))
    if read.integer_zero:
        return QuantizedArray(codes, scale, xp.astype(zero, xp.int32), scheme, tuple(weight.shape))
    return FloatZeroArray(codes, scale, zero, scheme, tuple(weight.shape))


@register_algorithm("hqq", options=HQQOptions, needs_zero_point=True)
def _quantize(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics | None = None,
    *,
    rotation: Rotation | None = None,
    **options: Any,
) -> LayerResult:
    """Half-quadratic zero points, and scales that keep the gain; the inputs do not matter."""
    weight = rotated(weight, rotation)
    return LayerResult(keep_gain(hqq(weight, scheme, **options), weight), rotation=rotation)


def _solve(weight: Array, scheme: TensorScheme, options: HQQOptions) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points of some rows."""
    xp = array_namespace(weight)
    shape, limits = tuple(weight.shape), integer_limits(scheme)
    start = choose_qparams(*value_range(weight, scheme.granularity), scheme)
    unit = against_parts(start.scale, shape, scheme.granularity)
    steps = to_parts(weight, scheme.granularity) / unit
    counted = _counted(weight, scheme)
    first = xp.astype(against_parts(start.zero_point, shape, scheme.granularity), xp.float32)
    scale, zero = _half_quadratic(steps, counted, first, limits, options)
    if options.integer_zero and options.optimize_scale:
        allowed = _costs(_error(steps, xp.ones_like(first), first, limits)[0], counted, options.p)[1]
        scale, zero = _fit_integers(steps, counted, (scale, zero), allowed, limits, options)
    codes = xp.clip(xp.round(steps / scale + zero), *limits)
    codes = xp.astype(from_parts(codes, shape, scheme.granularity), code_dtype(xp, scheme.dtype.element_type))
    lead = scale_shape(shape, scheme.granularity)
    return codes, xp.reshape(unit * scale, lead), xp.reshape(zero, lead)


def _half_quadratic(
    steps: Array, counted: Array, zero: Array, limits: tuple[int, int], options: HQQOptions
) -> tuple[Array, Array]:
    """The best scale, relative to the step, and zero point for each group of ``steps`` (..., size)."""
    xp = array_namespace(steps)
    count = xp.sum(counted, axis=-1, keepdims=True)
    scale = best_scale = xp.ones_like(zero)
    best_zero, best_cost, beta = zero, xp.full_like(zero, float("inf")), _BETA
    allowed: Array | None = None
    for _ in range(options.iterations):
        error, codes = _error(steps, scale, zero, limits)
        kept, magnitude = zero, xp.abs(error)
        if options.integer_zero:
            # On its way a zero point may lie between integers; one that is kept must be storable.
            kept = xp.clip(xp.round(zero), *limits)
            magnitude = xp.abs(_error(steps, scale, kept, limits)[0])
        cost, largest = _costs(magnitude, counted, options.p)
        allowed = largest if allowed is None else allowed
        better = (cost < best_cost * _WORTH) & (largest <= allowed)
        if not bool(xp.any(better)):
            break
        best_scale, best_zero = xp.where(better, scale, best_scale), xp.where(better, kept, best_zero)
        best_cost = xp.where(better, cost, best_cost)
        target = _target(steps, error, options.p, beta)
        zero = xp.sum(counted * (codes - target / scale), axis=-1, keepdims=True) / count
        if options.optimize_scale:
            scale = _fitted(target, codes - zero, counted, scale)
        beta *= _KAPPA
    return best_scale, best_zero


def _fit_integers(
    steps: Array,
    counted: Array,
    found: tuple[Array, Array],
    allowed: Array,
    limits: tuple[int, int],
    options: HQQOptions,
) -> tuple[Array, Array]:
    """Scales fitted to integer zero points, which stay where they are: those of ``found`` and their neighbours.

    The scale found with them was fitted to a zero point before it was rounded.
    """
    xp = array_namespace(steps)
    best_scale, best_zero = found
    best_cost = _costs(_error(steps, *found, limits)[0], counted, options.p)[0]
    for offset in (-1, 0, 1):
        scale, zero, beta = found[0], xp.clip(found[1] + offset, *limits), _BETA
        for _ in range(options.iterations):
            error, codes = _error(steps, scale, zero, limits)
            cost, largest = _costs(error, counted, options.p)
            better = (cost < best_cost * _WORTH) & (largest <= allowed)
            best_scale, best_zero = xp.where(better, scale, best_scale), xp.where(better, zero, best_zero)
            best_cost = xp.where(better, cost, best_cost)
            fitted = _fitted(_target(steps, error, options.p, beta), codes - zero, counted, scale)
            if bool(xp.all(xp.abs(fitted - scale) <= _STILL * scale)):
                break
            scale, beta = fitted, beta * _KAPPA
    return best_scale, best_zero


def _costs(error: Array, counted: Array, p: float) -> tuple[Array, Array]:
    """Σ |error|^p, and the fourth powers, of each group."""
    xp = array_namespace(error)
    magnitude = xp.abs(error)
    cost = xp.sum(counted * magnitude**p, axis=-1, keepdims=True)
    return cost, xp.sum(counted * (magnitude * magnitude) ** 2, axis=-1, keepdims=True)


def _target(steps: Array, error: Array, p: float, beta: float) -> Array:
    """``steps`` less the sparse part of the error: what is left of it when it is shrunk."""
    xp = array_namespace(steps)
    magnitude = xp.abs(error)
    shrunk = magnitude - xp.clip(magnitude, _TINY, None) ** (p - 1) / beta
    return steps - xp.sign(error) * xp.clip(shrunk, 0.0, None)


def _error(steps: Array, scale: Array, zero: Array, limits: tuple[int, int]) -> tuple[Array, Array]:
    xp = array_namespace(steps)
    codes = xp.clip(xp.round(steps / scale + zero), *limits)
    return steps - (codes - zero) * scale, codes


def _fitted(target: Array, levels: Array, counted: Array, scale: Array) -> Array:
    """Least squares for ``target = levels * scale``, and the old scale where that says nothing or turns the sign."""
    xp = array_namespace(target)
    square = xp.sum(counted * levels * levels, axis=-1, keepdims=True)
    fitted = xp.sum(counted * target * levels, axis=-1, keepdims=True) / xp.clip(square, _TINY, None)
    return xp.where(fitted > _TINY, fitted, scale)


def _counted(weight: Array, scheme: TensorScheme) -> Array:
    """1 for each weight of a part, 0 for what fills up a last short group."""
    xp = array_namespace(weight)
    inputs = weight.shape[1]
    ones = xp.ones(inputs, dtype=xp.float32, device=device(weight))
    size = group_size(scheme, inputs)
    return in_runs(ones, size) if scheme.granularity.name == "per_group" else ones
