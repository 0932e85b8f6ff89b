"""Metrics for ``eval_dataloader`` + ``eval_metric``: fed batch by batch, on NumPy or torch arrays."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.registry import Registry
from neural_compressor.tuning.predictions import as_array, class_numbers, difference_of


class Metric(ABC):
    """Accumulates over batches. ``higher_is_better`` is None where only the user knows."""

    name: str = "metric"
    higher_is_better: bool | None = True

    @abstractmethod
    def update(self, preds: Any, labels: Any) -> None:
        """Take in one batch of model outputs and what they should have been."""

    @abstractmethod
    def result(self) -> Any:
        """The metric over everything since the last :meth:`reset`."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""


METRICS: Registry[Callable[..., Metric]] = Registry("metric", entry_point_group="neural_compressor.metrics")


class _Mean(Metric):
    """A mean over elements, kept as a sum and a count."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total = 0.0
        self._count = 0

    def _add(self, total: float, count: int) -> None:
        self._total += total
        self._count += count

    def result(self) -> float:
        if not self._count:
            raise EvaluationError(f"metric {self.name} saw no data; the evaluation dataloader yields no batch")
        return self._total / self._count


@METRICS.register("accuracy", "top1")
class Accuracy(_Mean):
    """Share of right answers. ``preds`` are class scores on axis 1, class numbers, or probabilities of a yes.

    >>> metric = Accuracy()
    >>> metric.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    >>> metric.result()
    0.5
    """

    name = "accuracy"

    def update(self, preds: Any, labels: Any) -> None:
        predicted, expected = class_numbers(preds, labels, self.name)
        self._add(float((predicted == expected).sum()), expected.size)


@METRICS.register("topk")
class TopK(_Mean):
    """Share of samples whose label is among the ``k`` highest scores."""

    def __init__(self, k: int = 1) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"metric topk: k must be a positive integer, got {k!r}")
        self.k = k
        self.name = f"top{k}"
        super().__init__()

    def update(self, preds: Any, labels: Any) -> None:
        scores, expected = as_array(preds), as_array(labels)
        if scores.ndim != 2 or expected.shape != scores.shape[:1]:
            raise EvaluationError(
                f"metric topk needs scores of shape (batch, classes) and labels of shape (batch,), "
                f"got {scores.shape} and {expected.shape}"
            )
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
        self._add(float((best == expected[:, None]).any(axis=1).sum()), len(expected))


@METRICS.register("f1")
class F1(Metric):
    """F1 of class 1 where labels are 0 and 1; with more classes the mean of the F1 of each class."""

    name = "f1"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._right: Counter[int] = Counter()
        self._predicted: Counter[int] = Counter()
        self._expected: Counter[int] = Counter()

    def update(self, preds: Any, labels: Any) -> None:
        predicted, expected = class_numbers(preds, labels, self.name)
        self._right.update(expected[predicted == expected].tolist())
        self._predicted.update(predicted.tolist())
        self._expected.update(expected.tolist())

    def result(self) -> float:
        classes = set(self._expected) | set(self._predicted)
        if not classes:
            raise EvaluationError("metric f1 saw no data; the evaluation dataloader yields no batch")
        if classes <= {0, 1}:
            classes = {1}
        each = [2 * self._right[c] / max(self._predicted[c] + self._expected[c], 1) for c in classes]
        return sum(each) / len(each)


@METRICS.register("mse")
class MeanSquaredError(_Mean):
    """Mean of squared differences."""

    name = "mse"
    higher_is_better = False

    def update(self, preds: Any, labels: Any) -> None:
        difference = difference_of(preds, labels, self.name)
        self._add(float((difference**2).sum()), difference.size)


@METRICS.register("rmse")
class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of squared differences over all batches."""

    name = "rmse"

    def result(self) -> float:
        return math.sqrt(super().result())


@METRICS.register("mae")
class MeanAbsoluteError(_Mean):
    """Mean of absolute differences."""

    name = "mae"
    higher_is_better = False

    def update(self, preds: Any, labels: Any) -> None:
        difference = difference_of(preds, labels, self.name)
        self._add(float(np.abs(difference).sum()), difference.size)


class FunctionMetric(_Mean):
    """The mean of ``function(preds, labels)`` over batches, each weighing as many samples as it has."""

    higher_is_better = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        super().__init__()

    def update(self, preds: Any, labels: Any) -> None:
        from neural_compressor.tuning.evaluator import finite_number

        samples = len(labels) if hasattr(labels, "__len__") else 1
        self._add(finite_number(self._function(preds, labels), f"metric {self.name}") * samples, samples)


class ObjectMetric(Metric):
    """A user's object with ``update`` and ``result`` (or ``compute``); without ``reset`` each round takes a copy."""

    def __init__(self, metric: Any) -> None:
        self._pristine = metric
        self._metric = metric
        self.name = type(metric).__qualname__
        self.higher_is_better = getattr(metric, "higher_is_better", None)
        self.reset()

    def update(self, preds: Any, labels: Any) -> None:
        self._metric.update(preds, labels)

    def result(self) -> Any:
        return self._metric.result() if hasattr(self._metric, "result") else self._metric.compute()

    def reset(self) -> None:
        if hasattr(self._pristine, "reset"):
            self._metric.reset()
        else:
            self._metric = copy.deepcopy(self._pristine)


def resolve_metric(metric: Any) -> Metric:
    """The metric meant by a name, ``{'topk': {'k': 5}}``, an object with ``update`` and ``result``, or a function
    ``(preds, labels) -> float``.

    >>> resolve_metric({"topk": {"k": 5}}).name
    'top5'
    """
    if isinstance(metric, str):
        return METRICS[metric]()
    if isinstance(metric, Mapping):
        if len(metric) != 1:
            raise ConfigError(
                f"eval_metric as a dict names one metric, as in {{'topk': {{'k': 5}}}}; got {sorted(metric)}"
            )
        ((name, options),) = metric.items()
        factory = METRICS[name]
        try:
            return factory(**(options or {}))
        except TypeError as error:
            raise ConfigError(f"metric {name!r} does not take the options {options!r}: {error}") from error
    if isinstance(metric, type):
        return resolve_metric(metric())
    if isinstance(metric, Metric):
        return metric
    if hasattr(metric, "update") and (hasattr(metric, "result") or hasattr(metric, "compute")):
        return ObjectMetric(metric)
    if callable(metric):
        return FunctionMetric(metric)
    raise ConfigError(
        f"eval_metric of type {type(metric).__name__} is not understood; give a name ({', '.join(METRICS.names())}), "
        "a dict such as {'topk': {'k': 5}}, an object with update(preds, labels) and result(), or a function"
    )
