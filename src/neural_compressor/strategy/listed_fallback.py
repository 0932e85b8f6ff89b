"""Try what is on a list; where nothing on it will do, take ops of the best back to float."""

from __future__ import annotations

from collections.abc import Generator

from neural_compressor.schemes import float_op
from neural_compressor.strategy.base import Outcome, Proposal
from neural_compressor.strategy.fallback import fallback_steps
from neural_compressor.strategy.listed import ListedStrategy
from neural_compressor.strategy.search import SearchStrategy, Steps, rank
from neural_compressor.strategy.space import OpSpace, TuningSpace


class ListedFallbackStrategy(ListedStrategy):
    """Proposes the given plans one after the other. Where none keeps the promise, the quantized ops of the best one (by
    :func:`rank`) fall back to fp32: each alone, then those whose fall-back helped most, one more at each step."""

    def proposals(self) -> Generator[Proposal, Outcome, None]:
        """The list, then fall-back."""
        outcomes: list[Outcome] = []
        for proposal in self.listed:
            outcomes.append((yield proposal))
        if not outcomes or any(outcome.passed for outcome in outcomes):
            return
        best = min(range(len(outcomes)), key=lambda i: rank(outcomes[i]))
        yield from _Fallback(_space(self.listed[best]), self.seed).proposals_after(outcomes[best])


class _Fallback(SearchStrategy):
    """Fall-back from the only plan of a space that quantizes all its ops."""

    def steps(self) -> Steps:
        return fallback_steps(self.search)

    def proposals_after(self, outcome: Outcome) -> Generator[Proposal, Outcome, None]:
        """What there is to propose where the plan itself was tried."""
        self.search.trials[self.search.candidates.default()] = outcome
        return self.proposals()


def _space(proposal: Proposal) -> TuningSpace:
    """The ops of a plan, each as it is there or in fp32."""
    plan = proposal.plan
    ops = {
        key: OpSpace(() if scheme.is_float else (scheme,), (float_op("fp32", scheme.weight is not None),))
        for key, scheme in plan.items()
    }
    recipes = {name: (value,) for name, value in plan.recipes.items()}
    return TuningSpace(ops, (plan.calib_sampling_size,), recipes=recipes)
