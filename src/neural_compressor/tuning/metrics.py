"""Metrics for ``eval_dataloader`` + ``eval_metric``: fed batch by batch, on NumPy or torch arrays."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from neural_compressor.config.validators import is_whole
from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.registry import Registry
from neural_compressor.tuning.predictions import Array, as_array, class_numbers, difference_of
from neural_compressor.tuning.spread import Evidence, ratio_influences


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

    def evidence(self) -> Evidence:
        """What is known of the samples since the last :meth:`reset`, from which the spread of the result follows."""
        return Evidence()


METRICS: Registry[Callable[..., Metric]] = Registry("metric", entry_point_group="neural_compressor.metrics")


def _samples_in(labels: Any) -> int:
    """How many samples a batch of ``labels`` is of: arrays, or a list of what may differ in shape."""
    return len(labels) if hasattr(labels, "__len__") and getattr(labels, "shape", True) != () else 1


def _by_sample(values: Array, labels: Any) -> Array:
    """``values`` of elements as (samples, elements of each): a row for each of the ``labels``."""
    samples = _samples_in(labels)
    return values.reshape(samples, -1) if samples and values.size % samples == 0 else values.reshape(-1, 1)


class _Mean(Metric):
    """A mean over elements, kept as a sum and a count; beside it the sum and count of each sample."""

    right_or_wrong = False
    """Whether an element counts 0 or 1."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total = 0.0
        self._count = 0
        self._samples = 0
        self._totals: list[Array] = []
        self._counts: list[Array] = []

    def _add(self, values: Array, labels: Any) -> None:
        """Take in the ``values`` of the elements of a batch."""
        if not values.size:
            return
        rows = _by_sample(values, labels)
        self._add_sums(rows.sum(axis=1, dtype=np.float64), np.full(len(rows), float(rows.shape[1])), len(rows))
        self._total += float(values.sum())
        self._count += values.size

    def _add_sums(self, totals: Array, counts: Array, samples: int) -> None:
        self._totals.append(totals)
        self._counts.append(counts)
        self._samples += samples

    def result(self) -> float:
        if not self._count:
            raise EvaluationError(f"metric {self.name} saw no data; the evaluation dataloader yields no batch")
        return self._total / self._count

    def evidence(self) -> Evidence:
        if not self._count:
            return Evidence()
        influences = ratio_influences(np.concatenate(self._totals), np.concatenate(self._counts))
        return Evidence(self._samples, influences, 1 / self._count if self.right_or_wrong else 0.0)


@METRICS.register("accuracy", "top1")
class Accuracy(_Mean):
    """Share of right answers. ``preds`` are class scores on axis 1, class numbers, or probabilities of a yes.

    >>> metric = Accuracy()
    >>> metric.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    >>> metric.result()
    0.5
    """

    name = "accuracy"
    right_or_wrong = True

    def update(self, preds: Any, labels: Any) -> None:
        predicted, expected = class_numbers(preds, labels, self.name)
        self._add(predicted == expected, labels)


@METRICS.register("topk")
class TopK(_Mean):
    """Share of samples whose label, a class number or one-hot, is among the ``k`` highest scores."""

    right_or_wrong = True

    def __init__(self, k: int = 1) -> None:
        if not is_whole(k) or k < 1:
            raise ConfigError(f"metric topk: k must be a positive integer, got {k!r}")
        self.k = k
        self.name = f"top{k}"
        super().__init__()

    def update(self, preds: Any, labels: Any) -> None:
        scores, expected = as_array(preds), as_array(labels)
        if expected.shape == (*scores.shape[:1], 1):
            expected = expected[:, 0]
        elif expected.shape == scores.shape:  # one-hot
            expected = expected.argmax(axis=1)
        if scores.ndim != 2 or expected.shape != scores.shape[:1]:
            raise EvaluationError(
                f"metric topk needs scores of shape (batch, classes) and labels of shape (batch,), "
                f"got {scores.shape} and {expected.shape}"
            )
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
        self._add((best == expected[:, None]).any(axis=1), expected)


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
        self._pairs: list[tuple[Array, Array]] = []

    def update(self, preds: Any, labels: Any) -> None:
        predicted, expected = class_numbers(preds, labels, self.name)
        if expected.size:
            self._pairs.append((_by_sample(predicted, labels), _by_sample(expected, labels)))
        self._right.update(expected[predicted == expected].tolist())
        self._predicted.update(predicted.tolist())
        self._expected.update(expected.tolist())

    def result(self) -> float:
        classes = self._classes()
        if not classes:
            raise EvaluationError("metric f1 saw no data; the evaluation dataloader yields no batch")
        each = [2 * self._right[c] / max(self._predicted[c] + self._expected[c], 1) for c in classes]
        return sum(each) / len(each)

    def _classes(self) -> set[int]:
        classes = set(self._expected) | set(self._predicted)
        return {1} if classes and classes <= {0, 1} else classes

    def evidence(self) -> Evidence:
        """The F1 of a class is a ratio too: twice what is right, over what is expected and what is predicted."""
        if not (classes := self._classes()):
            return Evidence()

        def of_class(number: int) -> Array:
            found = [(p == number, e == number) for p, e in self._pairs]
            totals = np.concatenate([2.0 * (p & e).sum(axis=1) for p, e in found])
            counts = np.concatenate([p.sum(axis=1) + e.sum(axis=1) for p, e in found])
            return ratio_influences(totals, counts) if counts.any() else totals

        influences = np.mean([of_class(number) for number in classes], axis=0)
        elements = sum(expected.size for _, expected in self._pairs)
        return Evidence(len(influences), influences, 1 / elements)


class _Difference(_Mean):
    """A mean over differences from labels."""

    higher_is_better = False

    def __init__(self, compare_label: bool = True) -> None:
        if compare_label is not True:
            raise ConfigError(
                f"metric {self.name}: got compare_label={compare_label!r}; differences are from labels, so let the loader "
                "give the outputs of the float model as labels"
            )
        super().__init__()


@METRICS.register("mse")
class MeanSquaredError(_Difference):
    """Mean of squared differences."""

    name = "mse"

    def update(self, preds: Any, labels: Any) -> None:
        difference = difference_of(preds, labels, self.name)
        self._add(difference**2, labels)


@METRICS.register("rmse")
class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of squared differences over all batches."""

    name = "rmse"

    def result(self) -> float:
        return math.sqrt(super().result())

    def evidence(self) -> Evidence:
        found = super().evidence()
        if found.influences is None or not (root := self.result()):
            return found
        return replace(found, influences=found.influences / (2 * root))  # the slope of the root


@METRICS.register("mae")
class MeanAbsoluteError(_Difference):
    """Mean of absolute differences."""

    name = "mae"

    def update(self, preds: Any, labels: Any) -> None:
        difference = difference_of(preds, labels, self.name)
        self._add(np.abs(difference), labels)


@METRICS.register("loss")
class Loss(_Mean):
    """The mean of what a model gives, which is a loss: of each sample, or one of a batch, which weighs as its samples do."""

    name = "loss"
    higher_is_better = False

    def update(self, preds: Any, labels: Any) -> None:
        values = as_array(preds).astype(np.float64).reshape(-1)
        samples = _samples_in(labels)
        if len(values) != 1:
            self._add(values, labels)
            return
        self._total += values[0] * samples
        self._count += samples
        self._add_sums(values * samples, np.array([float(samples)]), samples)


class FunctionMetric(_Mean):
    """The mean of ``function(preds, labels)`` over batches, each weighing as many samples as it has."""

    higher_is_better = None

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        super().__init__()

    def update(self, preds: Any, labels: Any) -> None:
        from neural_compressor.tuning.evaluator import finite_number

        samples = _samples_in(labels)
        total = finite_number(self._function(preds, labels), f"metric {self.name}") * samples
        self._total += total
        self._count += samples
        self._add_sums(np.array([total]), np.array([float(samples)]), samples)


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
        self._samples += _samples_in(labels)

    def evidence(self) -> Evidence:
        return self._metric.evidence() if isinstance(self._metric, Metric) else Evidence(self._samples)

    def result(self) -> Any:
        return self._metric.result() if hasattr(self._metric, "result") else self._metric.compute()

    def reset(self) -> None:
        self._samples = 0
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
        options = {} if options is None else options
        try:
            # What is no mapping is the one option that a metric has, as in {'topk': 5}.
            return factory(**options) if isinstance(options, Mapping) else factory(options)
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
