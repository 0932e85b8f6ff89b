"""Try what is on a list; where nothing on it will do, take ops of the best back to float.

Whoever has the list makes this strategy, so no name stands for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from neural_compressor.errors import CalibrationError, NothingToQuantizeError
from neural_compressor.schemes import Plan, float_op
from neural_compressor.strategy.base import Outcome, Proposal, Proposals, Strategy
from neural_compressor.strategy.fallback import fallback_steps
from neural_compressor.strategy.search import SearchStrategy, Steps, rank
from neural_compressor.strategy.space import OpSpace, TuningSpace

logger = logging.getLogger("neural_compressor")
C = TypeVar("C")
T = TypeVar("T")


class ListedFallbackStrategy(Strategy):
    """Proposes the given plans in their order, each once. Where none keeps the promise, the quantized ops of the best one
    (by :func:`rank`) fall back to fp32: each alone, then those whose fall-back helped most, one more at each step."""

    def __init__(self, listed: Iterable[Proposal]) -> None:
        found: dict[Plan, Proposal] = {}
        for proposal in listed:
            found.setdefault(proposal.plan, proposal)
        # a journal knows the job by its plans
        super().__init__(TuningSpace({}), options={"plans": [plan.digest for plan in found]})
        self.listed = tuple(found.values())

    def proposals(self) -> Proposals:
        """The list, then fall-back."""
        outcomes: list[Outcome] = yield self.listed
        if not outcomes or any(outcome.passed for outcome in outcomes):
            return
        best = min(range(len(outcomes)), key=lambda i: rank(outcomes[i]))
        yield from _Fallback(_space(self.listed[best].plan)).proposals_after(outcomes[best])


def candidates(
    configs: Iterable[C], make: Callable[[C], T], lacks_data: Callable[[T], bool] = lambda made: False, remedy: str = ""
) -> list[tuple[C, T]]:
    """Configurations with what ``make`` makes of each; what makes no sense is an error of ``make``, before any work.

    One that quantizes nothing, or that needs data where there is none, is left out with a warning, which gives the
    ``remedy``; where none is left, that is an error.
    """
    found: list[tuple[C, T]] = []
    idle: list[NothingToQuantizeError] = []
    without_data = 0
    for config in configs:
        try:
            made = make(config)
        except NothingToQuantizeError as error:
            idle.append(error)
            logger.warning("%s is not tried: %s", config, error)
            continue
        if lacks_data(made):
            without_data += 1
            logger.warning("%s is not tried: it needs calibration data; %s", config, remedy)
            continue
        found.append((config, made))
    if not found and without_data:
        raise CalibrationError(f"every configuration that fits needs calibration data: {remedy}")
    if not found and idle:
        raise idle[0]
    return found


def is_from(plan: Plan, listed: Plan) -> bool:
    """Whether ``plan`` is the one ``listed``, or that with ops back in float.

    >>> fc = ("fc", "Linear")
    >>> is_from(Plan({fc: float_op("fp32")}), Plan({fc: float_op("bf16")})), is_from(Plan(), Plan({fc: float_op("fp32")}))
    (True, False)
    """
    alike = all(scheme.precision == "fp32" or listed.ops.get(key) == scheme for key, scheme in plan.items())
    same_run = plan.passes == listed.passes and plan.calib_sampling_size == listed.calib_sampling_size
    return plan.keys() == listed.keys() and alike and same_run


class _Fallback(SearchStrategy):
    """Fall-back from the only plan of a space that quantizes all its ops."""

    def steps(self) -> Steps:
        return fallback_steps(self.search)

    def proposals_after(self, outcome: Outcome) -> Proposals:
        """What there is to propose where the plan itself was tried."""
        self.search.trials[self.search.grid.default()] = outcome
        return self.proposals()


def _space(plan: Plan) -> TuningSpace:
    """The ops of a plan, each as it is there or in fp32."""
    ops = {
        key: OpSpace(() if scheme.precision == "fp32" else (scheme,), (float_op("fp32", scheme.weight is not None),))
        for key, scheme in plan.items()
    }
    return TuningSpace(ops, (plan.calib_sampling_size,), passes=tuple(plan.passes))
