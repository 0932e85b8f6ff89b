"""The parts of a tuning loop by the names of the 3.x API, for programs that write the loop themselves.

``autotune`` is the loop with a journal, a report and fallbacks of single ops; these are what it takes to spell a plain one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from neural_compressor.common.log import logger
from neural_compressor.config.composition import Composition
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.errors import ConfigError
from neural_compressor.tuning.criterion import Budget, Criterion
from neural_compressor.tuning.evaluator import Evaluator as Evaluation
from neural_compressor.tuning.evaluator import with_arguments

__all__ = [
    "ConfigLoader",
    "ConfigSet",
    "EvaluationFuncWrapper",
    "Evaluator",
    "Sampler",
    "SequentialSampler",
    "TuningConfig",
    "TuningLogger",
    "TuningMonitor",
    "default_sampler",
    "init_tuning",
]


class Evaluator:
    """A weighted sum of evaluations.

    >>> evaluator = Evaluator()
    >>> evaluator.set_eval_fn_registry([{"eval_fn": lambda model: 0.5}, {"eval_fn": lambda model: 1.0, "weight": 2}])
    >>> evaluator.evaluate("any model")
    2.5
    """

    def __init__(self) -> None:
        self._parts: list[tuple[dict[str, Any], Evaluation]] = []

    @property
    def eval_fn_registry(self) -> list[dict[str, Any]]:
        """The functions with their weights, as they were given."""
        return [part for part, _ in self._parts]

    def set_eval_fn_registry(self, user_eval_fns: Any) -> None:
        """Take a function of the model, ``{"eval_fn": ..., "weight": ..., "name": ...}``, or a list of those."""
        given = user_eval_fns if isinstance(user_eval_fns, list | tuple) else [user_eval_fns]
        found = [each if isinstance(each, Mapping) else {"eval_fn": each} for each in given]
        for each in found:
            if "eval_fn" not in each or not set(each) <= {"eval_fn", "weight", "name"}:
                raise ConfigError(f"set_eval_fn_registry: got {each!r}, expected eval_fn, and weight and name if any")
        parts = [{**each, "weight": float(each.get("weight", 1.0))} for each in found]
        self._parts = [(part, Evaluation(eval_func=part["eval_fn"])) for part in parts]

    def self_check(self) -> None:
        """Refuse to go on without a function."""
        if not self._parts:
            raise ConfigError("the evaluator has no function: call set_eval_fn_registry(eval_fn) first")

    def get_number_of_eval_functions(self) -> int:
        """How many there are."""
        return len(self._parts)

    def evaluate(self, model: Any) -> float:
        """The sum for a model."""
        self.self_check()
        return float(sum(part["weight"] * evaluate(model) for part, evaluate in self._parts))


class EvaluationFuncWrapper:
    """An evaluation with what it takes beside the model.

    >>> EvaluationFuncWrapper(pow, (3,)).evaluate(2)
    8.0
    """

    def __init__(self, eval_fn: Callable[..., Any], eval_args: Any = None) -> None:
        self._evaluate = Evaluation(eval_func=with_arguments(eval_fn, eval_args))

    def evaluate(self, model: Any) -> float:
        """The result for a model."""
        return self._evaluate(model)


class ConfigSet(Sequence[Composition]):
    """Single configurations, each once."""

    def __init__(self, config_list: Any) -> None:
        self.config_list = TuningConfig(config_list).expand()

    @classmethod
    def from_fwk_configs(cls, fwk_configs: Any) -> ConfigSet:
        """What a configuration, or a list of them, spans."""
        return cls(fwk_configs)

    @overload
    def __getitem__(self, index: int) -> Composition: ...
    @overload
    def __getitem__(self, index: slice) -> list[Composition]: ...
    def __getitem__(self, index: int | slice) -> Composition | list[Composition]:
        return self.config_list[index]

    def __len__(self) -> int:
        return len(self.config_list)


class Sampler(Iterable[int]):
    """The order in which configurations are tried, as positions. ``TuningConfig(sampler=...)`` takes the class."""

    def __init__(self, config_source: Sequence[Any]) -> None:
        self.config_source = config_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__, which yields positions in config_source")


class SequentialSampler(Sampler):
    """The order that was given."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.config_source)))


default_sampler = SequentialSampler


class ConfigLoader:
    """The configurations of a set as the sampler orders them."""

    def __init__(self, config_set: Any, sampler: Any = default_sampler) -> None:
        given = list(config_set) if isinstance(config_set, ConfigSet) else config_set
        self.config_set = ConfigSet(given)
        self._order = TuningConfig(given, sampler)

    def __iter__(self) -> Iterator[Composition]:
        return iter(self._order.candidates())


@dataclass(frozen=True)
class TrialRecord:
    """One trial."""

    trial_index: int
    trial_result: float
    quant_config: Any


class TuningMonitor:
    """Whether to go on, and which trial is the best."""

    def __init__(self, tuning_config: TuningConfig) -> None:
        self._criterion = Criterion.from_config(tuning_config.accuracy_criterion)
        self._budget = Budget.from_config(tuning_config.tuning_criterion)
        self._started = time.perf_counter()
        self.baseline: float | None = None
        self.tuning_history: list[TrialRecord] = []

    def set_baseline(self, baseline: float) -> None:
        """What the float model reaches."""
        self.baseline = baseline

    def add_trial_result(self, trial_index: int, trial_result: float, quant_config: Any) -> None:
        """Take in a trial."""
        self.tuning_history.append(TrialRecord(trial_index, trial_result, quant_config))

    def get_number_of_trials(self) -> int:
        """How many there were."""
        return len(self.tuning_history)

    def get_best_trial_record(self) -> TrialRecord:
        """The trial with the best result."""
        if not self.tuning_history:
            raise ConfigError("there is no trial yet: call add_trial_result first")
        return min(self.tuning_history, key=lambda record: self._criterion.loss(0.0, record.trial_result))

    def get_best_quant_config(self) -> Any:
        """Its configuration."""
        return self.get_best_trial_record().quant_config

    def need_stop(self) -> bool:
        """Whether the last trial kept the promise, or the budget is spent."""
        if self.baseline is None:
            raise ConfigError("the monitor has no baseline: call set_baseline(float_result) first")
        if not self.tuning_history:
            return False
        passed = self._criterion.holds(self.baseline, self.tuning_history[-1].trial_result)
        spent = time.perf_counter() - self._started
        return bool(self._budget.end(self.get_number_of_trials(), spent, passed))


class TuningLogger:
    """The steps of a loop in the log."""

    def __init__(self, log: logging.Logger = logger) -> None:
        self._log = log

    def _say(self, what: str) -> Callable[..., None]:
        return lambda trial_index=None: self._log.info("%s%s", what, "" if trial_index is None else f" {trial_index}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        step, _, end = name.rpartition("_")
        if step not in ("tuning", "trial", "quantization", "execution", "evaluation") or end not in ("start", "end"):
            raise AttributeError(f"TuningLogger has no {name!r}")
        return self._say(f"{step} {'starts' if end == 'start' else 'ends'}")


def init_tuning(tuning_config: TuningConfig) -> tuple[ConfigLoader, TuningLogger, TuningMonitor]:
    """What a loop of one's own needs: what to try, the log of its steps, and when to stop."""
    loader = ConfigLoader(list(tuning_config.config_set), tuning_config.sampler)
    return loader, TuningLogger(), TuningMonitor(tuning_config)
