"""The options of AutoRound, which trains the rounding of the layers of a block together: executors that train run it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from neural_compressor.algorithms.catalogue import (
    ALGORITHMS,
    EXECUTOR,
    FullRange,
    LayerOptions,
    WeightOnlyAlgorithm,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class AutoRoundOptions(LayerOptions):
    """The options of AutoRound.

    >>> AutoRoundOptions(iters=50).rates(0, bits=2), AutoRoundOptions(lr=0.1, enable_minmax_tuning=False).rates(50, bits=2)
    ((0.02, 0.01), (0.05, 0.0))
    """

    iters: NonNegativeInt = Field(
        default=100, description="steps of signed gradient descent; 0: nearest rounding with searched scales"
    )
    lr: PositiveFloat | None = Field(
        default=None, description="how far the first step moves a rounding, in steps of the grid; None: 1 / iters"
    )
    # The more codes there are, the less a scale may move before clipping costs more than it gains.
    minmax_lr: PositiveFloat | None = Field(
        default=None,
        description="how far it moves a scale, as a fraction of it; None: so that the largest code moves by lr",
    )
    # Where it falls to zero, the last steps settle what the first found.
    lr_scheduler: (
        Literal["linear", "cosine", "constant"] | Annotated[tuple[NonNegativeFloat, ...], Field(strict=False)]
    ) = Field(default="linear", description="how both fall: to 0 by a line or a cosine, not at all, or a factor a step")
    dynamic_max_gap: Annotated[int, Field(ge=-1)] = Field(
        default=-1,
        description="so many steps without a smaller loss than the least end training; -1 or 0: all are made",
    )
    # Few samples do: the noise of small steps averages out, and a step costs less.
    batch_size: PositiveInt = Field(default=2, description="samples that run at a time in training")
    gradient_accumulate_steps: PositiveInt = Field(default=1, description="such batches that a step sees")
    enable_minmax_tuning: bool = Field(default=True, description="learn the scales too")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="how much of earlier gradients is in a step"
    )
    sampler: Literal["rand", "seq"] = Field(
        default="rand", description="samples at random, or in order, batch after batch and around again"
    )
    seed: NonNegativeInt = Field(default=42, description="of the order in which samples are seen at random")
    keep_best: bool = Field(
        default=True, description="give up what was learned where the error is no smaller than before"
    )
    full_range: FullRange = None
    # Beside what it means elsewhere, training itself runs in it: an argument of the function.
    amp: bool = Field(default=True, description="run data and training in bfloat16, where the device is fast at it")
    quantized_input: Annotated[bool, EXECUTOR] = Field(
        default=True, description="train on inputs that come from quantized layers, not on those of the float model"
    )
    nblocks: Annotated[PositiveInt, EXECUTOR] = Field(
        default=1, description="consecutive blocks that are trained together, for what the last of them gives"
    )

    @model_validator(mode="after")
    def _a_factor_for_each_step(self) -> Self:
        if not isinstance(self.lr_scheduler, str) and len(self.lr_scheduler) != self.iters:
            raise ValueError(
                f"lr_scheduler has {len(self.lr_scheduler)} factors for {self.iters} steps; give one a step"
            )
        return self

    @property
    def samples_per_step(self) -> int:
        """How many samples each step is taken on."""
        return self.batch_size * self.gradient_accumulate_steps

    def rates(self, iteration: int, bits: int) -> tuple[float, float]:
        """How far step number ``iteration`` moves the roundings and the scales of a weight of so many bits."""
        left = self._left(iteration)
        lr = 1 / max(self.iters, 1) if self.lr is None else self.lr
        minmax_lr = lr / (1 << (bits - 1)) if self.minmax_lr is None else self.minmax_lr
        return lr * left, (minmax_lr * left if self.enable_minmax_tuning else 0.0)

    def _left(self, iteration: int) -> float:
        """The factor of the rates in a step."""
        if not isinstance(self.lr_scheduler, str):
            return self.lr_scheduler[iteration]
        done = iteration / max(self.iters, 1)
        return {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}[self.lr_scheduler]


class Patience:
    """Tells when training has gone on for ``most`` steps without a smaller loss than the least; never below 1.

    >>> patience = Patience(2)
    >>> [patience.ends(loss) for loss in (3.0, 2.0, 2.5, 2.0)]
    [False, False, False, True]
    """

    def __init__(self, most: int) -> None:
        self._most, self._least, self._since = most, math.inf, 0

    def __bool__(self) -> bool:
        return self._most > 0

    def ends(self, loss: float) -> bool:
        """Whether the step with this loss is the last."""
        self._since = 0 if loss < self._least else self._since + 1
        self._least = min(loss, self._least)
        return 0 < self._most <= self._since


ALGORITHMS.add(
    "autoround", WeightOnlyAlgorithm("autoround", None, AutoRoundOptions, needs_statistics=True, scope="block")
)
