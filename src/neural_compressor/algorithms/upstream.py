"""Aim at the outputs of the float model, where the inputs already carry the error of layers before."""

from __future__ import annotations

from collections.abc import Callable

from neural_compressor.algorithms.checks import checked_hessian
from neural_compressor.algorithms.matrix_parts import strips_of
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

Pull = Callable[[slice], Array]
"""``W Cᵀ`` of some outputs, as :func:`upstream_pull` gives it; asked for a strip at a time, it is never there as a whole."""


def upstream_pull(weight: Array, cross: Array) -> Array:
    """``W Cᵀ`` for ``cross`` = :attr:`InputStatistics.cross`: all that :func:`add_upstream` wants to know of it.

    Of the size of the weight (outputs, inputs), where ``cross`` has the inputs on both sides and can be dropped.

    >>> import numpy as np
    >>> upstream_pull(np.float32([[1.0, 2.0]]), np.float32([[0.0, 3.0], [0.0, 0.0]])).tolist()
    [[6.0, 0.0]]
    """
    weight = as_float32(weight)
    return array_namespace(weight).matmul(weight, checked_hessian(cross, weight).T)


def add_upstream(target: Array, pull: Pull, index: Array, factor: Array, share: float) -> None:
    """Add to ``target`` (inputs in the order of ``index``, outputs) what makes up for upstream error.

    With x̂ the inputs the layer sees and x those of the float model, what is wanted is the least
    ``Σ |W x - Ŵ x̂|² + λ |Ŵ - W|²``. Completing the square gives ``(Ŵ - W')(H + λ)(Ŵ - W')ᵀ`` and a constant, with
    ``W' = W + W Cᵀ (H + λ)⁻¹``, ``H = Σ x̂ x̂ᵀ`` and ``C = Σ x̂ (x - x̂)ᵀ``: the same problem with another target.
    The damping λ pulls towards W, not towards zero. ``pull`` gives ``W Cᵀ``, its inputs as they stand, ``factor`` that of
    ``H + λ`` relative to its mean diagonal, and ``share`` how far to go, over that mean: with few samples C is noisy.
    """
    xp = array_namespace(target)
    for strip in strips_of(target.shape[1]):
        rows = like(pull(strip), target)
        if tuple(rows.shape) != (strip.stop - strip.start, target.shape[0]):
            raise QuantizationError(
                f"pull gives an array of shape {(strip.stop - strip.start, target.shape[0])} for outputs {strip.start} to "
                f"{strip.stop}, as their weights have, not {tuple(rows.shape)}"
            )
        wanted = xp.take(rows.T, index, axis=0)
        target[:, strip] += share * xp.matmul(factor.T, xp.matmul(factor, wanted))
