"""Every plan of the space: the exhaustive strategy in order, the random one in any."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.search import SearchStrategy, Step, Steps
from neural_compressor.strategy.space import CALIBRATED_MODES, Grid, Point


@STRATEGIES.register("exhaustive")
class ExhaustiveStrategy(SearchStrategy):
    """The full product of op-wise options, calibration sizes and recipes. It ends when all were tried."""

    def steps(self) -> Steps:
        """One step a point, none of which depends on another."""
        points = enumerate(every_point(self.search.grid), start=1)
        yield (Step(point, "default" if number == 1 else f"combination {number}") for number, point in points)


@STRATEGIES.register("random")
class RandomStrategy(SearchStrategy):
    """Op-wise options drawn uniformly from a seeded generator, no plan twice. It ends when all were tried."""

    def steps(self) -> Steps:
        """One step a draw, none of which depends on another."""
        points = enumerate(shuffled(self.search.grid, self.seed), start=1)
        yield (Step(point, f"random draw {number}") for number, point in points)


def every_point(grid: Grid) -> Iterator[Point]:
    """The full product of options, one at a time, the default first; points of the same effect appear once."""
    space = grid.space
    sizes = range(len(space.calibration_sizes))
    recipes = [range(len(values)) for values in space.recipes.values()]
    options = [range(len(op.options)) for op in grid.ops]
    for recipe, size, choices in ((r, s, c) for r in product(*recipes) for s in sizes for c in product(*options)):
        point = Point(choices, size, recipe)
        if grid.canonical(point) is point:
            yield point


def count_points(grid: Grid) -> int:
    """How many points of different effect the space has."""
    sizes = len(grid.space.calibration_sizes)
    recipes = math.prod(len(values) for values in grid.space.recipes.values())
    every = math.prod(len(op.options) for op in grid.ops)
    uncalibrated = math.prod(sum(option.mode not in CALIBRATED_MODES for option in op.options) for op in grid.ops)
    return recipes * ((every - uncalibrated) * sizes + uncalibrated)


def shuffled(grid: Grid, seed: int) -> Iterator[Point]:
    """Every point once, in random order, without listing a space of which little is used."""
    generator = random.Random(seed)
    seen: set[Point] = set()
    total = count_points(grid)
    while 2 * len(seen) < total:
        drawn = grid.canonical(_draw(grid, generator))
        if drawn not in seen:
            seen.add(drawn)
            yield drawn
    rest = [point for point in every_point(grid) if point not in seen]
    generator.shuffle(rest)
    yield from rest


def _draw(grid: Grid, generator: random.Random) -> Point:
    space = grid.space
    return Point(
        tuple(generator.randrange(len(op.options)) for op in grid.ops),
        generator.randrange(len(space.calibration_sizes)),
        tuple(generator.randrange(len(values)) for values in space.recipes.values()),
    )
