"""Strategies that learn from the outcomes so far which plan to try next: Optuna's samplers over op-wise options."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from neural_compressor.errors import MissingDependencyError
from neural_compressor.strategy.base import STRATEGIES, Outcome
from neural_compressor.strategy.enumeration import shuffled
from neural_compressor.strategy.search import SearchStrategy, Step, Steps
from neural_compressor.strategy.space import Grid, Point

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_KNOWN_IN_A_ROW = 20
"""When a sampler has only given plans that were tried for so long, it has nothing more to say."""
_BROKEN_PROMISE = 1e3
"""What a plan that breaks the promise costs beside its loss: more than any that keeps it."""
_CALIBRATION = "calibration"


@dataclass(frozen=True)
class _Parameters:
    """What a sampler varies: runs of neighbouring ops that take the same choice each, the calibration size and recipes."""

    grid: Grid
    runs: Mapping[str, range]

    @classmethod
    def of(cls, grid: Grid, most: int | None) -> _Parameters:
        """A parameter an op, or where there would be more than ``most``, one for each of so many runs of neighbours."""
        count = len(grid.ops)
        size = 1 if most is None else max(1, math.ceil(count / most))
        return cls(grid, {f"op{i}": range(i, min(i + size, count)) for i in range(0, count, size)})

    @property
    def choices(self) -> dict[str, int]:
        """How many values each has, where that is more than one."""
        space = self.grid.space
        found = {name: max(len(self.grid.ops[p].options) for p in run) for name, run in self.runs.items()}
        found[_CALIBRATION] = len(space.calibration_sizes)
        found |= {f"recipe {name}": len(values) for name, values in space.recipes.items()}
        return {name: count for name, count in found.items() if count > 1}

    def point(self, values: Mapping[str, int]) -> Point:
        """What the values stand for; an op with fewer options than its neighbours takes its last, which is fp32."""
        ops, choices = self.grid.ops, list(self.grid.default().choices)
        for name, run in self.runs.items():
            for position in run:
                choices[position] = min(values.get(name, choices[position]), len(ops[position].options) - 1)
        recipes = tuple(values.get(f"recipe {name}", 0) for name in self.grid.space.recipes)
        return self.grid.canonical(Point(tuple(choices), values.get(_CALIBRATION, 0), recipes))

    def default(self) -> dict[str, int]:
        """Values that come nearest to the default plan."""
        choices = self.grid.default().choices
        return {name: choices[self.runs[name][0]] if name in self.runs else 0 for name in self.choices}


class _SamplerStrategy(SearchStrategy):
    """The default plan, then what a sampler makes of the outcomes; what it never comes to is drawn at random at the end."""

    #: What the steps are called.
    label: str
    #: How many parameters the sampler takes in reasonable time; None: any number.
    most_parameters: int | None = None

    @abstractmethod
    def _sampler(self) -> BaseSampler:
        """The sampler, seeded."""

    def steps(self) -> Steps:
        """One step a suggestion."""
        import optuna

        grid, sampler = self.search.grid, self._sampler()
        parameters = _Parameters.of(grid, self.most_parameters)
        space: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(tuple(range(count)))
            for name, count in parameters.choices.items()
        }
        outcome: Outcome = yield Step(grid.default(), "default")
        study = _study(sampler)
        study.add_trial(
            optuna.trial.create_trial(params=parameters.default(), distributions=space, value=_cost(outcome))
        )
        known, number = 0, 0
        while space and known < _KNOWN_IN_A_ROW:
            trial = study.ask(space)
            point = parameters.point(trial.params)
            known = known + 1 if point in self.search.trials or grid.is_baseline(point) else 0
            number += not known
            outcome = yield Step(point, f"{self.label} {number}")
            study.tell(trial, _cost(outcome))
        rest = (point for point in shuffled(grid, self.seed) if point not in self.search.trials)
        yield (Step(point, f"random draw {place}") for place, point in enumerate(rest, start=1))


def _study(sampler: BaseSampler) -> Any:
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # that a study in memory was made is of interest to nobody
    try:
        return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _cost(outcome: Outcome) -> float:
    """Plans that keep the promise by their score; the others by their loss, and behind these."""
    if outcome.passed:
        return -outcome.score
    return _BROKEN_PROMISE * (2.0 if math.isnan(outcome.loss) else 1.0 + min(max(outcome.loss, 0.0), 1.0))


@STRATEGIES.register("tpe")
class TpeStrategy(_SamplerStrategy):
    """Tree-structured Parzen estimators: each op's options are drawn as they were in the better plans so far."""

    label = "tpe"

    def _sampler(self) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.seed)


@STRATEGIES.register("bayesian")
class BayesianStrategy(_SamplerStrategy):
    """A Gaussian process over the plans so far, and the plan that promises to improve most.

    It takes seconds for hundreds of parameters: in a large model neighbouring ops vary together."""

    label = "bayesian"
    most_parameters = 24

    def _sampler(self) -> BaseSampler:
        for package in ("torch", "scipy"):
            if find_spec(package) is None:
                raise MissingDependencyError(
                    f"strategy 'bayesian' computes with {package}, which is not installed: pip install {package}, or take "
                    "strategy 'tpe'"
                )
        import warnings

        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.GPSampler(seed=self.seed, deterministic_objective=True)
