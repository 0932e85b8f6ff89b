"""TEQ: train the scales of the inputs by gradient descent on the output error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from neural_compressor.algorithms.awq import ScaledInputOptions, round_scaled
from neural_compressor.algorithms.catalogue import EXECUTOR, register_algorithm
from neural_compressor.algorithms.input_scaling import ScalingProblem
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.losses import quadratic_loss
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import TensorScheme, value_range
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.ranges import against_parts, from_parts, scale_granularity, to_parts

_MOMENTUM, _MEMORY, _TINY = 0.9, 0.99, 1e-12
_FARTHEST = 9.0  # of a logarithm: no useful scale is beyond, and float32 has room around it


class TEQOptions(ScaledInputOptions):
    """The options of TEQ."""

    steps: PositiveInt = Field(default=100, description="steps of the training of scales")
    lr: PositiveFloat = Field(default=0.05, description="how far the first step moves the logarithm of a scale")
    rows: PositiveInt | None = Field(default=128, description="outputs that each step looks at, in turn; None: all")
    clip: bool = Field(default=False, description="then search the range of each group")
    amp: Annotated[bool, EXECUTOR] = Field(
        default=True, description="run data through float32 models in bfloat16, where the device is fast at it"
    )


def teq_scale(
    weights: Sequence[Array],
    statistics: InputStatistics,
    scheme: TensorScheme,
    *,
    steps: int = 100,
    lr: float = 0.05,
    rows: int | None = 128,
    full_range: bool | None = None,
) -> Array:
    """A scale for each input, trained from 1 on to make the outputs of ``weights`` move least.

    Cheng et al. 2023 train such scales through the model; here the output error comes from the Hessian, so the gradient
    has a closed form (:func:`teq_gradient`) and no activations are kept. The steps are Adam's, on the logarithm of the
    scale, with a rate that falls to zero, and each looks at about ``rows`` outputs, all of them in turn. What they lead
    to is compared with no scale on all outputs, and the better is returned. ``full_range`` is that of
    :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams`.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> rng = np.random.default_rng(0)
    >>> seen = InputStatistics()
    >>> seen.update(rng.standard_normal((256, 4)).astype(np.float32) * np.float32([9, 1, 1, 1]))
    >>> scheme = TensorScheme(dtype("int3"), granularity=PerGroup(4))
    >>> s = teq_scale([rng.standard_normal((64, 4)).astype(np.float32)], seen, scheme)
    >>> int(np.argmax(s))
    0
    """
    if steps < 1 or lr <= 0:
        raise ConfigError(f"training needs at least one step and a positive rate, not {steps} and {lr}")
    problem = ScalingProblem(weights, statistics.hessian, scheme, full_range)
    xp = array_namespace(problem.hessian)
    log_scale = mean = square = xp.zeros_like(problem.ones())
    unit = None
    for step in range(steps):
        sample = problem.stacked(rows, phase=step)
        unit = unit or quadratic_loss(sample, xp.zeros_like(sample), problem.hessian) or 1.0
        gradient = teq_gradient(sample, xp.exp(log_scale), problem)[1] / unit
        mean = _MOMENTUM * mean + (1 - _MOMENTUM) * gradient
        square = _MEMORY * square + (1 - _MEMORY) * gradient * gradient
        size = xp.sqrt(square / (1 - _MEMORY ** (step + 1))) + _TINY
        rate = lr * (1 - step / steps)
        log_scale = log_scale - rate * mean / (1 - _MOMENTUM ** (step + 1)) / size
        log_scale = xp.clip(log_scale, -_FARTHEST, _FARTHEST)
    return problem.best([xp.exp(log_scale)])


@register_algorithm("teq", options=TEQOptions, needs_statistics=True)
def _quantize(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    steps: int,
    lr: float,
    rows: int | None,
    clip: bool,
    full_range: bool | None,
) -> LayerResult:
    scale = teq_scale([weight], statistics, scheme, steps=steps, lr=lr, rows=rows, full_range=full_range)
    return round_scaled(weight, scheme, statistics.hessian, scale, clip=clip, full_range=full_range)


def teq_gradient(weight: Array, scale: Array, problem: ScalingProblem) -> tuple[float, Array]:
    """The loss at ``scale`` and its gradient by ``log(scale)``, with rounding straight through.

    With ``E = W - Q(W s) / s`` and ``C = E * (E H)``, summed over outputs the loss is the sum of C. Two things happen when
    ``s_j`` grows. The errors of input j shrink: ``-2 Σ_i C_ij``. And where input j holds an end of its group's range, the
    step of the group grows with it, and all errors of the group: ``+2`` times the group's sum of C, shared between the
    two ends in proportion where the grid is asymmetric. So a common factor of all scales has no gradient, as it should.
    """
    xp = array_namespace(weight)
    scaled = weight * scale
    error = weight - problem.rounded(weight, scale)
    cost = error * xp.matmul(error, problem.hessian)
    through_range = _share_of_range(scaled, problem.scheme) * _spread(cost, problem.scheme)
    return float(xp.sum(cost, dtype=xp.float64)), 2 * xp.sum(through_range - cost, axis=0)


def _spread(cost: Array, scheme: TensorScheme) -> Array:
    """At each weight, the sum over all that share its scale."""
    xp = array_namespace(cost)
    granularity = scale_granularity(scheme)
    if granularity.name == "per_tensor":
        return xp.full_like(cost, float(xp.sum(cost)))
    if granularity.name == "per_channel":
        return xp.broadcast_to(xp.sum(cost, axis=1, keepdims=True), cost.shape)
    shape = tuple(cost.shape)
    parts = to_parts(cost, granularity)
    inside = to_parts(xp.ones_like(cost[:1, :]), granularity)
    missing = parts.shape[1] * parts.shape[2] - shape[1]
    total = xp.sum(parts, axis=-1, keepdims=True)
    if missing:
        total[:, -1:, :] -= missing * parts[:, -1:, -1:]
    return from_parts(xp.broadcast_to(total, parts.shape) * inside, shape, granularity)


def _share_of_range(scaled: Array, scheme: TensorScheme) -> Array:
    """How much of its group's step each weight accounts for: 1 at the largest magnitude, else shared by the two ends."""
    xp = array_namespace(scaled)
    shape, granularity = tuple(scaled.shape), scale_granularity(scheme)
    low, high = value_range(scaled, granularity)
    low, high = xp.clip(low, None, 0.0), xp.clip(high, 0.0, None)
    if scheme.symmetric:
        high = xp.maximum(-low, high)
        low, scaled = xp.zeros_like(high), xp.abs(scaled)
    span = xp.where(high > low, high - low, xp.ones_like(high))
    parts = to_parts(scaled, granularity)

    def end(value: Array, share: Array) -> Array:
        at_end = xp.astype(parts == against_parts(value, shape, granularity), xp.float32)
        return at_end * against_parts(share, shape, granularity)

    share = end(high, high / span) + end(low, -low / span)
    return from_parts(share, shape, granularity)
