"""Scales that move the difficulty of quantizing activations into the weights."""

from __future__ import annotations

from neural_compressor.errors import ConfigError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

_SMALLEST = 1e-5


def smooth_scale(act_absmax: Array, weight_absmax: Array, alpha: float = 0.5) -> Array:
    """What to divide each input by, and multiply its weights with: ``act^alpha / weight^(1 - alpha)``.

    Xiao et al. 2022, equation 4. An input that was always zero, or has no weight, keeps its scale of 1.

    >>> import numpy as np
    >>> smooth_scale(np.float32([16.0, 1.0, 0.0]), np.float32([1.0, 4.0, 2.0])).tolist()
    [4.0, 0.5, 1.0]
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha goes from 0 (leave the activations) to 1 (all into the weights), not {alpha}")
    activation = as_float32(act_absmax)
    weight = like(weight_absmax, activation)
    if tuple(activation.shape) != tuple(weight.shape):
        raise ConfigError(
            f"one largest magnitude an input is needed on both sides, not {tuple(activation.shape)} and "
            f"{tuple(weight.shape)}"
        )
    xp = array_namespace(activation)
    scale = xp.clip(activation, _SMALLEST, None) ** alpha / xp.clip(weight, _SMALLEST, None) ** (1 - alpha)
    live = xp.logical_and(activation > 0, weight > 0)
    return xp.where(live, scale, xp.ones_like(scale))
