"""The output error of weights whose inputs are scaled before rounding: what AWQ and TEQ make small."""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import device

from neural_compressor.algorithms.checks import checked_hessian, checked_weight
from neural_compressor.algorithms.losses import quadratic_loss
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import TensorScheme, fake_quantize
from neural_compressor.schemes.arrays import Array, array_namespace


class ScalingProblem:
    """Weights that share an input, and the second moments of that input.

    A scale ``s`` for each input multiplies the weights before they are rounded and divides the inputs when the layer
    runs: in effect the weight becomes ``Q(W s) / s``. The loss is a sum over outputs, so a search may look at an evenly
    spaced sample of them. ``full_range`` is that of
    :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams`.
    """

    def __init__(
        self, weights: Sequence[Array], hessian: Array, scheme: TensorScheme, full_range: bool | None = None
    ) -> None:
        if not weights:
            raise QuantizationError("there are no weights to find a scale for")
        first = weights[0]
        if any(weight.shape[-1] != first.shape[-1] for weight in weights):
            shapes = [tuple(weight.shape) for weight in weights]
            raise QuantizationError(f"weights that share an input have as many columns, not shapes {shapes}")
        self.weights = [checked_weight(weight, scheme) for weight in weights]
        self.hessian = checked_hessian(hessian, self.weights[0])
        self.scheme = scheme
        self.full_range = full_range

    def stacked(self, rows: int | None = None, phase: int = 0) -> Array:
        """The weights one above the other: all rows, or about ``rows`` of them, evenly spaced.

        Different ``phase`` numbers give different rows, and in turn all of them.
        """
        xp = array_namespace(self.hessian)
        total = sum(weight.shape[0] for weight in self.weights)
        step = 1 if rows is None else max(1, total // rows)
        parts = [weight[min(phase % step, weight.shape[0] - 1) :: step, :] for weight in self.weights]
        return parts[0] if len(parts) == 1 else xp.concat(parts)

    def rounded(self, weight: Array, scale: Array) -> Array:
        """The weight that scaling, rounding and scaling back gives."""
        scaled = weight * scale
        qparams = weight_qparams(scaled, self.scheme, full_range=self.full_range)
        return fake_quantize(scaled, self.scheme, qparams) / scale

    def loss(self, weight: Array, scale: Array) -> float:
        """The quadratic output error of ``weight`` under ``scale``."""
        return quadratic_loss(weight, self.rounded(weight, scale), self.hessian)

    def ones(self) -> Array:
        """The scale that changes nothing."""
        xp = array_namespace(self.hessian)
        return xp.ones(self.hessian.shape[0], dtype=xp.float32, device=device(self.hessian))

    def best(self, scales: Sequence[Array]) -> Array:
        """The one of ``scales`` with the least loss over all rows, or none (ones) where that is no worse."""
        weight = self.stacked()
        candidates = [self.ones(), *scales]
        losses = [self.loss(weight, scale) for scale in candidates]
        return candidates[losses.index(min(losses))]
