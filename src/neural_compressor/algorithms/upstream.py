"""Aim at the outputs of the float model, where the inputs already carry the error of layers before."""

from __future__ import annotations

from array_api_compat import array_namespace

from neural_compressor.schemes.arrays import Array


def upstream_corrected(target: Array, cross: Array, factor: Array, mean_diagonal: float, mix: float) -> Array:
    """The weight (inputs, outputs) to quantize instead of ``target``, so that upstream error is made up for.

    With x̂ the inputs the layer sees and x those of the float model, what is wanted is the least
    ``Σ |W x - Ŵ x̂|² + λ |Ŵ - W|²``. Completing the square gives ``(Ŵ - W')(H + λ)(Ŵ - W')ᵀ`` and a constant, with
    ``W' = W + W Cᵀ (H + λ)⁻¹``, ``H = Σ x̂ x̂ᵀ`` and ``C = Σ x̂ (x - x̂)ᵀ``: the same problem with another target.
    The damping λ pulls towards W, not towards zero, and ``mix`` goes only that part of the way: with few samples C is
    noisy. ``factor`` is that of ``H / mean_diagonal``.
    """
    if mean_diagonal == 0 or mix == 0:
        return target
    xp = array_namespace(target)
    wanted = xp.matmul(factor.T, xp.matmul(factor, xp.matmul(cross, target)))
    wanted *= mix / mean_diagonal
    wanted += target
    return wanted
