"""AutoRound for a layer that is in no block: a pooler, a classifier, the output head."""

from __future__ import annotations

from torch import Tensor

from neural_compressor.algorithms import InputStatistics, LayerResult, quadratic_loss
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.schemes import TensorScheme
from neural_compressor.torch.methods.autoround.options import AutoRoundOptions
from neural_compressor.torch.methods.autoround.rounding import LearnedRounding

_MOMENTUM = 0.9
"""Gradients over all inputs have no noise that would lead out of where their signs go back and forth; inertia does."""


def tune_layer(
    weight: Tensor, scheme: TensorScheme, statistics: InputStatistics, options: AutoRoundOptions
) -> LayerResult:
    """``weight`` (outputs, inputs) rounded so that what the layer gives for the inputs seen changes least.

    For one layer alone that error is quadratic in the weight: its gradient comes from the second moments of the inputs,
    over all of them at once, and neither inputs nor outputs (of a vocabulary's width) are kept.

    >>> import torch
    >>> from neural_compressor.dtypes import dtype
    >>> _ = torch.manual_seed(0)
    >>> weight, seen, scheme = torch.randn(4, 16), InputStatistics(), TensorScheme(dtype("int3"))
    >>> seen.update(torch.randn(64, 4) @ torch.randn(4, 16))
    >>> losses = [
    ...     quadratic_loss(weight, tune_layer(weight, scheme, seen, AutoRoundOptions(iters=n)).dequantize(), seen.hessian)
    ...     for n in (0, 50)
    ... ]
    >>> losses[1] < 0.8 * losses[0]
    True
    """
    hessian = statistics.hessian
    importance = statistics.mean_square
    qparams = weight_qparams(weight, scheme, search="mse", importance=importance, full_range=options.full_range)
    rounding = LearnedRounding(weight, scheme, qparams, options.momentum or _MOMENTUM)
    values = rounding.values()
    before = quadratic_loss(weight, values, hessian)
    for iteration in range(options.iters):
        rates = options.rates(iteration, scheme.dtype.bits)
        rounding.step((values - weight) @ hessian, *rates, out=values)
    if options.keep_best and not quadratic_loss(weight, values, hessian) <= before:
        rounding.reset()
    return LayerResult(rounding.result())
