"""Search step by step: what the strategies of the toolkit share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.strategy.base import Outcome, Proposal, Proposals, Strategy
from neural_compressor.strategy.space import Grid, Point, TuningSpace

BASELINE = Outcome(loss=0.0, passed=True, score=1.0)
"""What comes of a plan that changes nothing."""


@dataclass(frozen=True)
class Step:
    """A point to look at. ``last`` is False where the step is only a part of a result still being built."""

    point: Point
    stage: str
    last: bool = True


Steps = Generator[Step | Iterable[Step], Any, None]
"""As :data:`~neural_compressor.strategy.base.Proposals`: one step at a time, or several that do not depend on each other.
``last`` is for steps that come one at a time."""


class Search:
    """The space as points, with what came of those tried so far."""

    def __init__(self, space: TuningSpace) -> None:
        self.grid = Grid(space)
        self.trials: dict[Point, Outcome] = {}

    def best_quantized(self) -> Point:
        """Of the points tried that quantize every op they can, the best by :func:`rank`; before any was tried, the
        default."""
        whole = [point for point in self.trials if self.grid.is_fully_quantized(point)]
        return min(whole, key=lambda p: rank(self.trials[p]), default=self.grid.default())


def rank(outcome: Outcome) -> tuple[int, float]:
    """The order in which outcomes are preferred, the best first.

    Passing ones go by their score. The others are starts for falling back to float, which undoes a plan until its loss is
    what is allowed. Were both spread evenly over the ops, 1 + (score - 1) * allowed / loss would be left of the score: so
    they go by gain for loss, and where there is no gain by the loss.
    """
    gain, loss = outcome.score - 1, math.inf if math.isnan(outcome.loss) else outcome.loss
    if outcome.passed:
        return 0, -outcome.score
    return (1, -gain / loss) if gain > 0 and 0 < loss < math.inf else (2, loss)


class SearchStrategy(Strategy):
    """A strategy written as steps over one search.

    A point that was tried is not proposed again: its step is answered with the outcome known. Nor is the plan that
    leaves every op in fp32: that is the baseline.
    """

    def __init__(self, space: TuningSpace, seed: int = 42, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(space, seed, options)
        self.search = Search(space)
        self._settled = False

    @abstractmethod
    def steps(self) -> Steps:
        """Yield a step, or several that do not depend on each other; each ``yield`` evaluates to what came of them."""

    def proposals(self) -> Proposals:
        """Propose what the steps name and nobody has tried."""
        trials, stream = self.search.trials, self.steps()
        answer: Any = None
        while True:
            try:
                asked = stream.send(answer)
            except StopIteration:
                self.may_stop = True
                return
            points: list[Point] = []
            new: dict[Point, Step] = {}
            told = yield self._untried([asked] if isinstance(asked, Step) else asked, points, new)
            trials.update(zip(new, told, strict=True))
            if new:
                self._settled = any(step.last and trials[point].passed for point, step in new.items())
            outcomes = [BASELINE if self.search.grid.is_baseline(point) else trials[point] for point in points]
            answer = outcomes[0] if isinstance(asked, Step) else outcomes

    def _untried(self, steps: Iterable[Step], points: list[Point], new: dict[Point, Step]) -> Iterator[Proposal]:
        """The proposals of ``steps``; their ``points`` are noted in order, and those that are ``new``."""
        grid, trials = self.search.grid, self.search.trials
        for step in steps:
            point = grid.canonical(step.point)
            points.append(point)
            if not (point in trials or point in new or grid.is_baseline(point)):
                new[point] = step
                self.may_stop = self._settled or step.last
                yield Proposal(grid.plan(point), step.stage)
