"""AWQ: scale up the inputs that matter before rounding, then clip the range of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveInt

from neural_compressor.algorithms.catalogue import EXECUTOR, FullRange, LayerOptions, register_algorithm
from neural_compressor.algorithms.checks import checked_hessian, checked_weight
from neural_compressor.algorithms.input_scaling import ScalingProblem
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.losses import block_quadratic, quadratic_loss
from neural_compressor.algorithms.rtn import round_with, rtn
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.algorithms.weight_qparams import least_cost_qparams
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import QParams, TensorScheme, value_range
from neural_compressor.schemes.arrays import Array, array_namespace, like
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts

_SMALLEST = 1e-4
_FINALISTS = 6


class ScaledInputOptions(LayerOptions):
    """The options of methods that scale the inputs of a layer, and may let the layer before take the scale in."""

    full_range: FullRange = None
    folding: Annotated[bool, EXECUTOR] = Field(
        default=False, description="the normalisation before takes the scales in; where there is none they are left out"
    )
    absorb: Annotated[dict[str, list[str]], EXECUTOR] = Field(
        default={},
        description="layers that share an input by the name of what takes their scale in, where it is not found",
    )


class AWQOptions(ScaledInputOptions):
    """The options of AWQ."""

    auto_scale: bool = Field(default=True, description="search the scales of the inputs")
    auto_clip: bool = Field(default=True, description="then search the range of each group")
    grid: PositiveInt = Field(default=20, description="exponents tried in the search of scales")


def awq_scale(
    weights: Sequence[Array],
    statistics: InputStatistics,
    scheme: TensorScheme,
    *,
    grid: int = 20,
    rows: int | None = 512,
    full_range: bool | None = None,
) -> Array:
    """The scale of each input at which the outputs of ``weights``, which share that input, move least.

    Tried are ``mean|x|^a`` and ``mean|x|^a / w^(1-a)``, with w the mean magnitude of the input's weights relative to
    their group, for ``grid`` values of a from 0 to 1 (Lin et al. 2023, equation 5), scaled to be centred around 1. The
    output error comes from the Hessian in closed form, so no activations are kept. The search looks at about ``rows``
    outputs; the scale found is then compared on all of them with no scale at all, and never worse. ``full_range`` is that
    of :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams`, here and below.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> rng = np.random.default_rng(0)
    >>> seen = InputStatistics()
    >>> seen.update(rng.standard_normal((256, 4)).astype(np.float32) * np.float32([9, 1, 1, 1]))
    >>> scheme = TensorScheme(dtype("int3"), granularity=PerGroup(4))
    >>> s = awq_scale([rng.standard_normal((64, 4)).astype(np.float32)], seen, scheme)
    >>> int(np.argmax(s))
    0
    """
    if grid < 1:
        raise ConfigError(f"the grid has at least one point, not {grid}")
    problem = ScalingProblem(weights, statistics.hessian, scheme, full_range)
    xp = array_namespace(problem.hessian)
    sample = problem.stacked(rows)
    activation = xp.clip(like(statistics.mean_abs, sample), _SMALLEST, None)
    magnitude = xp.clip(_relative_magnitude(sample, scheme), _SMALLEST, None)
    trials = [
        _centred(scale)
        for alpha in ((i + 1) / grid for i in range(grid))
        for scale in (activation**alpha, activation**alpha / magnitude ** (1 - alpha))
    ]
    # A quarter of the rows tells the bad from the good, and all of them the good from the best.
    few = problem.stacked(None if rows is None else max(1, rows // 4))
    trials = sorted(trials, key=lambda scale: problem.loss(few, scale))[:_FINALISTS]
    return problem.best([min(trials, key=lambda scale: problem.loss(sample, scale))])


def awq_clip(weight: Array, hessian: Array, scheme: TensorScheme, *, full_range: bool | None = None) -> QParams:
    """Scales and zero points over ranges clipped so that the output error of each group, taken alone, is least.

    A group's error is weighed with its own block of the Hessian, so what its inputs have in common counts.
    """
    weight = checked_weight(weight, scheme)
    loss = block_quadratic(scheme, checked_hessian(hessian, weight))
    return least_cost_qparams(weight, scheme, loss, full_range=full_range)


def round_scaled(
    weight: Array,
    scheme: TensorScheme,
    hessian: Array,
    scale: Array | None = None,
    *,
    clip: bool = True,
    full_range: bool | None = None,
) -> LayerResult:
    """``weight`` rounded under a ``scale`` of its inputs, with clipped ranges where the outputs then move less."""
    weight = checked_weight(weight, scheme)
    hessian = checked_hessian(hessian, weight)
    xp = array_namespace(weight)
    if scale is not None:
        scale = like(scale, weight)
        scale = None if bool(xp.all(scale == 1)) else scale
    if scale is not None:
        weight, hessian = weight * scale, hessian / scale[:, None] / scale[None, :]
    best = rtn(weight, scheme, full_range=full_range)
    if clip:
        clipped = round_with(weight, scheme, awq_clip(weight, hessian, scheme, full_range=full_range))
        # Groups were clipped each on its own; what they have in common may say otherwise.
        if quadratic_loss(weight, clipped.dequantize(), hessian) < quadratic_loss(weight, best.dequantize(), hessian):
            best = clipped
    return LayerResult(best, input_scale=scale)


@register_algorithm("awq", options=AWQOptions, needs_statistics=True)
def _quantize(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    auto_scale: bool,
    auto_clip: bool,
    full_range: bool | None,
    grid: int,
) -> LayerResult:
    scale = awq_scale([weight], statistics, scheme, grid=grid, full_range=full_range) if auto_scale else None
    return round_scaled(weight, scheme, statistics.hessian, scale, clip=auto_clip, full_range=full_range)


def _relative_magnitude(weight: Array, scheme: TensorScheme) -> Array:
    """The mean over outputs of each weight's magnitude relative to the largest that shares its scale."""
    xp = array_namespace(weight)
    shape, granularity = tuple(weight.shape), scale_granularity(scheme)
    low, high = value_range(weight, granularity)
    largest = xp.maximum(xp.abs(low), xp.abs(high))
    largest = against_parts(xp.where(largest > 0, largest, xp.ones_like(largest)), shape, granularity)
    return xp.mean(from_parts(to_parts(xp.abs(weight), granularity) / largest, shape, granularity), axis=0)


def _centred(scale: Array) -> Array:
    """``scale`` with its largest and smallest value equally far from 1."""
    xp = array_namespace(scale)
    return xp.clip(scale / xp.sqrt(xp.max(scale) * xp.min(scale)), _SMALLEST, None)
