"""The random strategy: plans drawn uniformly from the space."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.candidate import CALIBRATED_MODES, Candidate, Candidates
from neural_compressor.strategy.exhaustive import every_candidate
from neural_compressor.strategy.search import SearchStrategy, Step, Steps


def count_candidates(candidates: Candidates) -> int:
    """How many candidates of different effect the space has."""
    sizes = len(candidates.space.calibration_sizes)
    recipes = math.prod(len(values) for values in candidates.space.recipes.values())
    every = math.prod(len(op.options) for op in candidates.ops)
    uncalibrated = math.prod(sum(option.mode not in CALIBRATED_MODES for option in op.options) for op in candidates.ops)
    return recipes * ((every - uncalibrated) * sizes + uncalibrated)


def shuffled(candidates: Candidates, seed: int) -> Iterator[Candidate]:
    """Every candidate once, in random order, without listing a space of which little is used."""
    generator = random.Random(seed)
    seen: set[Candidate] = set()
    total = count_candidates(candidates)
    while 2 * len(seen) < total:
        drawn = candidates.canonical(_draw(candidates, generator))
        if drawn not in seen:
            seen.add(drawn)
            yield drawn
    rest = [candidate for candidate in every_candidate(candidates) if candidate not in seen]
    generator.shuffle(rest)
    yield from rest


def _draw(candidates: Candidates, generator: random.Random) -> Candidate:
    space = candidates.space
    return Candidate(
        tuple(generator.randrange(len(op.options)) for op in candidates.ops),
        generator.randrange(len(space.calibration_sizes)),
        tuple(generator.randrange(len(values)) for values in space.recipes.values()),
    )


@STRATEGIES.register("random")
class RandomStrategy(SearchStrategy):
    """Op-wise options drawn uniformly from a seeded generator, no plan twice. It ends when all were tried."""

    def steps(self) -> Steps:
        """One step a draw."""
        for number, candidate in enumerate(shuffled(self.search.candidates, self.seed), start=1):
            yield Step(candidate, f"random draw {number}")
