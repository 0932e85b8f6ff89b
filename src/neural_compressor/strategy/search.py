"""Search step by step: what the strategies of the toolkit share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.strategy.base import Outcome, Proposal, Strategy
from neural_compressor.strategy.candidate import Candidate, Candidates
from neural_compressor.strategy.space import TuningSpace

BASELINE = Outcome(loss=0.0, passed=True, score=1.0)
"""What comes of a plan that changes nothing."""


@dataclass(frozen=True)
class Step:
    """A candidate to look at. ``last`` is False where the step is only a part of a result still being built."""

    candidate: Candidate
    stage: str
    last: bool = True


Steps = Generator[Step, Outcome, None]


class Search:
    """The space as candidates, with what came of those tried so far."""

    def __init__(self, space: TuningSpace) -> None:
        self.candidates = Candidates(space)
        self.trials: dict[Candidate, Outcome] = {}

    def best_quantized(self) -> Candidate:
        """Of the candidates tried that quantize every op they can, the best by :func:`rank`; before any was tried, the
        default."""
        whole = [candidate for candidate in self.trials if self.candidates.is_fully_quantized(candidate)]
        return min(whole, key=lambda c: rank(self.trials[c]), default=self.candidates.default())


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

    A candidate that was tried is not proposed again: its step is answered with the outcome known. Nor is the plan that
    leaves every op in fp32: that is the baseline.
    """

    def __init__(self, space: TuningSpace, seed: int = 42, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(space, seed, options)
        self.search = Search(space)

    @abstractmethod
    def steps(self) -> Steps:
        """Yield steps; each ``yield`` evaluates to the outcome of its candidate."""

    def proposals(self) -> Generator[Proposal, Outcome, None]:
        """Propose what the steps name and nobody has tried."""
        candidates, trials = self.search.candidates, self.search.trials
        stream = self.steps()
        step = next(stream, None)
        settled = False
        while step is not None:
            candidate = candidates.canonical(step.candidate)
            if candidates.is_baseline(candidate):
                outcome = BASELINE
            elif candidate in trials:
                outcome = trials[candidate]
            else:
                self.may_stop = settled or step.last
                outcome = yield Proposal(candidates.plan(candidate), step.stage)
                trials[candidate] = outcome
                settled = step.last and outcome.passed
            try:
                step = stream.send(outcome)
            except StopIteration:
                self.may_stop = True
                return
