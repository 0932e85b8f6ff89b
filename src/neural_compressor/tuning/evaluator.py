"""The evaluation of a model by a function or metric of the user: one finite number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.user_code import name_of
from neural_compressor.errors import ConfigError, EvaluationError, WorkspaceError
from neural_compressor.tuning import average_precision, text_metrics  # noqa: F401  which register their metrics
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.identity import identity
from neural_compressor.tuning.metrics import Metric, resolve_metric
from neural_compressor.tuning.spread import Evidence

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor


class Evaluator:
    """The user's ``eval_func(model) -> float``, or a metric over a dataloader (see :func:`resolve_metric`), with checks
    on what comes of it. Where both are given ``eval_func`` is taken.

    ``identity`` tells evaluations apart in a journal; ``higher_is_better`` is known where a metric says so.

    >>> Evaluator(eval_func=lambda model: 0.5)("any model")
    0.5
    """

    def __init__(
        self,
        adaptor: Adaptor | None = None,
        *,
        eval_func: Callable[[Any], Any] | None = None,
        eval_dataloader: Iterable[Any] | None = None,
        eval_metric: Any = None,
    ) -> None:
        self.higher_is_better: bool | None = None
        self._metric: Metric | None = None
        if eval_func is not None:
            if not callable(eval_func):
                raise ConfigError(f"eval_func must be a function of the model, got {type(eval_func).__name__}")
            self._function = eval_func
            self.name = name_of(eval_func)
            self.identity = identity(eval_func)
            return
        if adaptor is None or eval_dataloader is None or eval_metric is None:
            raise ConfigError("an evaluation needs an eval_func, or an eval_dataloader together with an eval_metric")
        require_repeatable(eval_dataloader, "eval_dataloader")
        metric: Metric = resolve_metric(eval_metric)
        self.higher_is_better = metric.higher_is_better
        self._metric = metric

        def evaluate(model: Any) -> Any:
            metric.reset()
            return adaptor.evaluate(model, eval_dataloader, metrics=[metric])

        self._function = evaluate
        self.name = f"metric {metric.name}"
        self.identity = (
            f"{identity(metric if isinstance(eval_metric, type) else eval_metric)} {identity(eval_dataloader)}"
        )

    def check(self, criterion: Criterion) -> None:
        """Refuse a criterion that takes the metric the wrong way round: it would accept the worst model."""
        if self.higher_is_better is not None and self.higher_is_better != criterion.higher_is_better:
            better = "higher" if self.higher_is_better else "lower"
            raise ConfigError(
                f"{self.name} is better when {better}, and the accuracy criterion says the opposite; "
                f"set AccuracyCriterion(higher_is_better={self.higher_is_better})"
            )

    def evaluate(self, model: Any) -> tuple[float, Evidence]:
        """The number, and what is known of the samples it is of: nothing where a function of the user gives it."""
        value = self(model)
        return value, Evidence() if self._metric is None else self._metric.evidence()

    def __call__(self, model: Any) -> float:
        try:
            value = self._function(model)
        except (EvaluationError, WorkspaceError):
            raise
        except Exception as error:
            raise EvaluationError(f"{self.name} raised {type(error).__name__}: {error}") from error
        return finite_number(value, self.name)


@dataclass(frozen=True)
class WithArguments:
    """A function of a model and ``arguments`` as one of a model."""

    func: Callable[..., Any]
    arguments: Sequence[Any]

    @property
    def known_by(self) -> tuple[Any, ...]:
        """What a journal knows it by."""
        return self.func, self.arguments

    def __call__(self, model: Any) -> Any:
        return self.func(model, *self.arguments)


def with_arguments(function: Callable[..., Any], arguments: Any, name: str = "eval_fn") -> Callable[[Any], Any]:
    """``function(model, *arguments)`` as a function of the model; a single argument need not be in a tuple.

    >>> with_arguments(pow, 3)(2)
    8
    """
    if not callable(function):
        raise ConfigError(f"{name} is a {type(function).__name__}; it must be a function of the model")
    if arguments is None:
        return function
    return WithArguments(function, arguments if isinstance(arguments, tuple | list) else (arguments,))


def finite_number(value: Any, source: str) -> float:
    """``value`` as a float; anything that is not one finite number is an error that names its ``source``."""
    advice = "return one finite number, for instance the accuracy as a float"
    if value is None:
        raise EvaluationError(f"{source} returned None; {advice} (is a return statement missing?)")
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "item"):
        if math.prod(shape) != 1:
            raise EvaluationError(f"{source} returned a {type(value).__name__} of shape {tuple(shape)}; {advice}")
        value = value.item()
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise EvaluationError(f"{source} returned {_shown(value)}; {advice}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise EvaluationError(f"{source} returned {_shown(value)}, which is no number ({error}); {advice}") from error
    if not math.isfinite(number):
        raise EvaluationError(f"{source} returned {number}; {advice}")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 60 else text[:57] + '...'})"


def require_repeatable(data: Any, name: str) -> None:
    """Refuse an iterator: the first model would use it up, and the next would see nothing."""
    if hasattr(data, "__next__"):
        raise ConfigError(
            f"{name} is a {type(data).__name__}, which can be gone through only once, and each trial needs it anew; "
            "give a list or a dataloader"
        )
