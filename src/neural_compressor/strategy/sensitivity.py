"""Strategies that ask what each op costs before they take any back to float: mse, mse_v2 and hawq_v2."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from neural_compressor.config.validators import is_whole
from neural_compressor.errors import ConfigError
from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.basic import variation_steps
from neural_compressor.strategy.fallback import accumulated_steps, fallback_steps, recovering_steps
from neural_compressor.strategy.search import SearchStrategy, Step, Steps
from neural_compressor.strategy.space import Point, TuningSpace

logger = logging.getLogger("neural_compressor")


@STRATEGIES.register("mse")
class MseStrategy(SearchStrategy):
    """The basic strategy with ops that fall back in the order of the error of their outputs, the largest first: alone,
    then one more at each step. Where the framework does not tell these errors, the loss that each leaves alone decides."""

    def steps(self) -> Steps:
        """Quantized options, then fall-back by errors."""
        yield from variation_steps(self.search)
        yield from fallback_steps(self.search, self._by_error)

    def _by_error(self, base: Point) -> list[int] | None:
        if self.op_errors is None:
            logger.info("strategy 'mse': the errors of single ops are not known here, so that each op is tried alone")
            return None
        grid = self.search.grid
        errors = self.op_errors(grid.plan(base))
        return sorted(grid.quantizable, key=lambda p: (-errors.get(grid.keys[p], 0.0), p))


@STRATEGIES.register("mse_v2")
class MseV2Strategy(SearchStrategy):
    """Ops fall back to fp32 in the order of the error that they alone bring into the model's output, the largest first,
    until the promise holds; then those that cost least are quantized again as far as it still does.

    ``confidence_batches`` of the calibration data (2) tell these errors. Where nobody can, each op is tried alone."""

    known_options = ("confidence_batches",)

    def __init__(self, space: TuningSpace, seed: int = 42, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(space, seed, options)
        self._batches = _confidence_batches(self.options.get("confidence_batches", 2))

    def steps(self) -> Steps:
        """The default plan, then as few ops in float as will do."""
        if self.output_errors is None and "confidence_batches" in self.options:
            raise ConfigError(
                "strategy_kwargs: confidence_batches are batches of the calib_dataloader that tell the errors of single "
                "ops, and there is none, or this framework does not tell them; give a calib_dataloader, or leave it out"
            )
        grid = self.search.grid
        yield Step(grid.default(), "default")
        base = self.search.best_quantized()
        if self.output_errors is not None:
            errors = self.output_errors(grid.plan(base), self._batches)
            cost = {p: errors.get(grid.keys[p], 0.0) for p in grid.quantizable}
        else:
            logger.info(
                "strategy 'mse_v2': the errors of single ops are not known here, so that each op is tried alone"
            )
            back = {p: len(grid.ops[p].options) - 1 for p in grid.quantizable}
            alone = [Step(base.with_choices({p: c}), f"{grid.keys[p][0]} to fp32", last=False) for p, c in back.items()]
            outcomes = yield alone
            cost = {p: -outcome.loss for p, outcome in zip(back, outcomes, strict=True)}
        yield from recovering_steps(self.search, sorted(cost, key=lambda p: (-cost[p], p)))


def _confidence_batches(batches: Any) -> int:
    if not is_whole(batches) or batches < 1:
        raise ConfigError(f"strategy_kwargs: confidence_batches is {batches!r}, expected a number of batches from 1 on")
    return int(batches)


@STRATEGIES.register("hawq_v2")
class HawqV2Strategy(SearchStrategy):
    """Ops fall back one after the other in the order of what quantizing them costs in the loss: the mean of the diagonal of
    its Hessian times the squared error of the weight (HAWQ-V2, Dong et al. 2020).

    ``hawq_v2_loss(output, label)`` is the loss; one that takes a third argument is given ``torch.nn.CrossEntropyLoss()``."""

    known_options = ("hawq_v2_loss",)

    def steps(self) -> Steps:
        """The default plan, then one op more in float at each step."""
        loss = self.options.get("hawq_v2_loss")
        if not callable(loss):
            raise ConfigError(
                "strategy 'hawq_v2' ranks ops by a loss: give strategy_kwargs={'hawq_v2_loss': loss}, a function of the "
                "model's output and the label"
            )
        if self.loss_errors is None:
            raise ConfigError(
                "strategy 'hawq_v2' needs derivatives of the model, which this framework does not give, and a "
                "calib_dataloader with labels; 'mse_v2' does without"
            )
        told, grid = self.loss_errors, self.search.grid
        yield Step(grid.default(), "default")

        def ranked(base: Point) -> list[int]:
            errors = told(grid.plan(base), loss)
            return sorted(grid.quantizable, key=lambda p: (-errors.get(grid.keys[p], 0.0), p))

        yield from accumulated_steps(self.search, ranked)
