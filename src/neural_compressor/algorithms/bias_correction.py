"""Take the mean error of a quantized layer out through its bias."""

from __future__ import annotations

from array_api_compat import array_namespace

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes.arrays import Array, as_float32, like


def bias_correction(
    weight: Array, approximation: Array, mean_input: Array, reference_mean: Array | None = None
) -> Array:
    """What to add to the bias so that the mean output is the float layer's: ``(W - Ŵ) E[x]``, one value an output.

    ``reference_mean`` is the mean input in the float model, where the quantized one sees another: ``W E[x] - Ŵ E[x̂]``.

    >>> import numpy as np
    >>> bias_correction(np.float32([[1.0, 2.0]]), np.float32([[1.5, 2.0]]), np.float32([4.0, 1.0])).tolist()
    [-2.0]
    """
    weight = as_float32(weight)
    approximation, mean = like(approximation, weight), like(mean_input, weight)
    if tuple(approximation.shape) != tuple(weight.shape) or tuple(mean.shape) != (weight.shape[1],):
        raise QuantizationError(
            f"a weight of shape {tuple(weight.shape)} needs an approximation of the same shape and {weight.shape[1]} "
            f"mean inputs, not {tuple(approximation.shape)} and {tuple(mean.shape)}"
        )
    xp = array_namespace(weight)
    shift = xp.matmul(weight - approximation, mean)
    if reference_mean is None:
        return shift
    return shift + xp.matmul(weight, like(reference_mean, weight) - mean)
