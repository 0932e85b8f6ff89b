"""How AutoRound trains the rounding of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class AutoRoundOptions:
    """Options of :func:`~neural_compressor.torch.methods.autoround.training.tune_block`.

    - ``iters``: steps of signed gradient descent; 0 leaves it at nearest rounding with searched scales.
    - ``lr``: how far a step moves the rounding of each weight, in steps of the grid; by default ``1 / iters``, with which
      a weight can cross half a step. It falls linearly to zero, so that the last steps settle what the first found.
    - ``minmax_lr``: how far a step moves each scale, as a fraction of it; by default so far that the largest code moves by
      ``lr``: the more codes there are, the less a scale may move before clipping costs more than it gains.
    - ``enable_minmax_tuning``: whether scales are learned at all.
    - ``batch_size`` and ``gradient_accumulate_steps``: a step sees the product of the two in samples. Few samples do:
      the noise of small steps averages out, and a step costs less.
    - ``momentum``: how much of the gradients before goes into a step.
    - ``seed``: of the order in which samples are seen.
    - ``keep_best``: give up what was learned where the block's error is no smaller than before.
    - ``full_range``: see :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams`.
    - ``amp``: whether the block runs in bfloat16 while it is trained; None decides by what the device is fast at.

    >>> AutoRoundOptions(iters=50).rates(0, bits=2), AutoRoundOptions(lr=0.1, enable_minmax_tuning=False).rates(50, bits=2)
    ((0.02, 0.01), (0.05, 0.0))
    """

    iters: int = 100
    lr: float | None = None
    minmax_lr: float | None = None
    batch_size: int = 2
    gradient_accumulate_steps: int = 1
    enable_minmax_tuning: bool = True
    momentum: float = 0.0
    seed: int = 42
    keep_best: bool = True
    amp: bool | None = None
    full_range: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("iters", 0), ("batch_size", 1), ("gradient_accumulate_steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"AutoRound's {name} is a whole number of at least {least}, not {value!r}")
        for name in ("lr", "minmax_lr"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"AutoRound's {name} is a positive number, or None for the usual one; not {value!r}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"AutoRound's momentum is at least 0 and less than 1, not {self.momentum!r}")

    @property
    def samples_per_step(self) -> int:
        """How many samples each step is taken on."""
        return self.batch_size * self.gradient_accumulate_steps

    def rates(self, iteration: int, bits: int) -> tuple[float, float]:
        """How far step number ``iteration`` moves the roundings and the scales of a weight of so many bits."""
        left = 1 - iteration / max(self.iters, 1)
        lr = 1 / max(self.iters, 1) if self.lr is None else self.lr
        minmax_lr = lr / (1 << (bits - 1)) if self.minmax_lr is None else self.minmax_lr
        return lr * left, (minmax_lr * left if self.enable_minmax_tuning else 0.0)
