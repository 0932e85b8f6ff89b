"""The options of AutoRound, which trains the rounding of the layers of a block together: executors that train run it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from neural_compressor.algorithms.catalogue import (
    ALGORITHMS,
    EXECUTOR,
    FullRange,
    LayerOptions,
    WeightOnlyAlgorithm,
)


class AutoRoundOptions(LayerOptions):
    """The options of AutoRound.

    >>> AutoRoundOptions(iters=50).rates(0, bits=2), AutoRoundOptions(lr=0.1, enable_minmax_tuning=False).rates(50, bits=2)
    ((0.02, 0.01), (0.05, 0.0))
    """

    iters: NonNegativeInt = Field(
        default=100, description="steps of signed gradient descent; 0: nearest rounding with searched scales"
    )
    # It falls linearly to zero, so that the last steps settle what the first found.
    lr: PositiveFloat | None = Field(
        default=None, description="how far the first step moves a rounding, in steps of the grid; None: 1 / iters"
    )
    # The more codes there are, the less a scale may move before clipping costs more than it gains.
    minmax_lr: PositiveFloat | None = Field(
        default=None,
        description="how far it moves a scale, as a fraction of it; None: so that the largest code moves by lr",
    )
    # Few samples do: the noise of small steps averages out, and a step costs less.
    batch_size: PositiveInt = Field(default=2, description="samples that run at a time in training")
    gradient_accumulate_steps: PositiveInt = Field(default=1, description="such batches that a step sees")
    enable_minmax_tuning: bool = Field(default=True, description="learn the scales too")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="how much of earlier gradients is in a step"
    )
    seed: NonNegativeInt = Field(default=42, description="of the order in which samples are seen")
    keep_best: bool = Field(
        default=True, description="give up what was learned where the error is no smaller than before"
    )
    full_range: FullRange = None
    # Beside what it means elsewhere, training itself runs in it: an argument of the function.
    amp: bool = Field(default=True, description="run data and training in bfloat16, where the device is fast at it")
    quantized_input: Annotated[bool, EXECUTOR] = Field(
        default=True, description="train on inputs that come from quantized layers, not on those of the float model"
    )

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


ALGORITHMS.add(
    "autoround", WeightOnlyAlgorithm("autoround", None, AutoRoundOptions, needs_statistics=True, scope="block")
)
