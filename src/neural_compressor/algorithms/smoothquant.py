"""Scales that move the difficulty of quantizing activations into the weights."""

from __future__ import annotations

from collections.abc import Sequence

from neural_compressor.errors import ConfigError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

_SMALLEST = 1e-5
AUTO_ALPHAS = tuple(i / 10 for i in range(11))
"""What ``alpha="auto"`` chooses from, op by op."""

Alpha = float | str | Sequence[float | str]


def check_alpha(alpha: Alpha, auto: Sequence[float] = AUTO_ALPHAS) -> tuple[float, ...]:
    """What ``alpha`` admits, as numbers from 0 to 1; ``auto`` is what "auto" stands for.

    >>> check_alpha([0.3, 0.5])
    (0.3, 0.5)
    """
    alphas: list[float] = []
    for value in alpha if isinstance(alpha, Sequence) and not isinstance(alpha, str) else (alpha,):
        if value == "auto":
            alphas += auto
        elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            alphas.append(float(value))
        else:
            raise ConfigError(
                f"alpha is {value!r}; give a number from 0 (leave the activations) to 1 (all into the weights), "
                "a list of them, or 'auto'"
            )
    if not alphas:
        raise ConfigError("alpha is an empty list; give at least one number from 0 to 1, or 'auto'")
    return tuple(dict.fromkeys(alphas))


def alphas_between(least: float, most: float, step: float) -> tuple[float, ...]:
    """The values that "auto" chooses from, ``most`` among them only where steps end there.

    >>> alphas_between(0.2, 0.5, 0.1)
    (0.2, 0.3, 0.4, 0.5)
    """
    if not 0 <= least <= most <= 1:
        raise ConfigError(f"alpha_min is {least} and alpha_max {most}; they go from 0 to 1, the least first")
    if step <= 0:
        raise ConfigError(f"alpha_step is {step}; it has to be above 0")
    count = int((most - least) / step + 1e-6) + 1
    return tuple(round(least + i * step, 6) for i in range(count))


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
