"""Back to float where quantization hurts: blocks, single ops, then the ops whose fall-back helps most, added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.strategy.base import Outcome
from neural_compressor.strategy.search import Search, Step, Steps
from neural_compressor.strategy.space import Grid, Point


def fallback_steps(search: Search, ranked: Callable[[Point], Sequence[int] | None] = lambda base: None) -> Steps:
    """For each float precision the space has, the cheapest first; all start from the best plan that quantizes all ops.

    They share that start, and not what falling back finds, so that a later stage can find fewer ops in float. ``ranked``
    may give the ops of that start by how much they suffer, the worst first; otherwise each is tried alone to find out.
    """
    base, grid = search.best_quantized(), search.grid
    order = ranked(base)
    for precision in FLOAT_PRECISIONS:
        targets = _targets(grid, base, precision, range(len(base.choices)) if order is None else order)
        alone = [
            Step(base.with_choices({position: choice}), f"{grid.keys[position][0]} to {precision}")
            for position, choice in targets.items()
        ]
        blocks = list(_block_steps(grid, base, precision))
        outcomes: list[Outcome] = yield [*blocks, *alone]
        losses = [math.inf if math.isnan(outcome.loss) else outcome.loss for outcome in outcomes[len(blocks) :]]
        impact = dict(zip(targets, losses, strict=True))
        joining = list(targets) if order is not None else sorted(targets, key=lambda p: (impact[p], p))
        yield _joining_steps(base, targets, joining, precision)


def accumulated_steps(search: Search, ranked: Callable[[Point], Sequence[int]]) -> Steps:
    """From the best plan that quantizes all ops on, one op more in float at each step, the first of ``ranked`` first."""
    base, grid = search.best_quantized(), search.grid
    order = ranked(base)
    for precision in FLOAT_PRECISIONS:
        targets = _targets(grid, base, precision, order)
        yield _joining_steps(base, targets, list(targets), precision)


def recovering_steps(search: Search, order: Sequence[int]) -> Steps:
    """Ops fall back in ``order`` until the promise holds; then those that fell back first return as far as it still does."""
    base, grid = search.best_quantized(), search.grid
    targets = _targets(grid, base, "fp32", order)
    point, fallen = base, list[int]()
    for position, choice in targets.items():
        point = point.with_choices({position: choice})
        fallen.append(position)
        outcome: Outcome = yield Step(point, f"{len(fallen)} ops to fp32", last=False)
        if outcome.passed:
            break
    else:
        return
    for position in reversed(fallen[:-1]):
        tried = point.with_choices({position: base.choices[position]})
        outcome = yield Step(tried, f"{grid.keys[position][0]} quantized again", last=False)
        point = tried if outcome.passed else point


def _block_steps(grid: Grid, base: Point, precision: str) -> Iterator[Step]:
    for number, block in enumerate(grid.space.blocks, start=1):
        targets = _targets(grid, base, precision, [grid.positions[key] for key in block])
        if targets:
            yield Step(base.with_choices(targets), f"block {number} to {precision}")


def _joining_steps(base: Point, targets: Mapping[int, int], order: Iterable[int], precision: str) -> Iterator[Step]:
    """Ops fall back in ``order``, one more at each step."""
    point = base
    for count, position in enumerate(order, start=1):
        point = point.with_choices({position: targets[position]})
        yield Step(point, f"{count} ops to {precision}")


def _targets(grid: Grid, base: Point, precision: str, positions: Iterable[int]) -> dict[int, int]:
    """The quantized ops of ``base`` that admit ``precision``, with the choice that takes them there."""
    choices = {p: grid.float_choice(p, precision) for p in positions if grid.is_quantized(base, p)}
    return {position: choice for position, choice in choices.items() if choice is not None}
