"""The exhaustive strategy: every plan of the space."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.candidate import Candidate, Candidates
from neural_compressor.strategy.search import SearchStrategy, Step, Steps


def every_candidate(candidates: Candidates) -> Iterator[Candidate]:
    """The full product of options, one at a time, the default first; candidates of the same effect appear once."""
    space = candidates.space
    sizes = range(len(space.calibration_sizes))
    recipes = [range(len(values)) for values in space.recipes.values()]
    options = [range(len(op.options)) for op in candidates.ops]
    for recipe, size, choices in ((r, s, c) for r in product(*recipes) for s in sizes for c in product(*options)):
        candidate = Candidate(choices, size, recipe)
        if candidates.canonical(candidate) is candidate:
            yield candidate


@STRATEGIES.register("exhaustive")
class ExhaustiveStrategy(SearchStrategy):
    """The full product of op-wise options, calibration sizes and recipes. It ends when all were tried."""

    def steps(self) -> Steps:
        """One step a candidate."""
        for number, candidate in enumerate(every_candidate(self.search.candidates), start=1):
            yield Step(candidate, "default" if number == 1 else f"combination {number}")
