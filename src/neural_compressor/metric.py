"""Metrics under the names that programs written for the 2.x API import; see :mod:`neural_compressor.tuning.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neural_compressor.adaptor.contract import ADAPTORS
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.tuning import metrics
from neural_compressor.tuning.metrics import Metric as BaseMetric
from neural_compressor.tuning.metrics import ObjectMetric

__all__ = ["METRICS", "BaseMetric", "Metric"]

_FRAMEWORKS = ("onnxrt_qlinearops", "onnxrt_integerops", "onnxrt_qdq", "pytorch_fx", "pytorch_ipex")
"""Names that 2.x has for variants of a framework; metrics are the same in all."""


class METRICS(Mapping[str, Callable[..., BaseMetric]]):
    """The metrics of a ``framework`` by name, in any case. They work on NumPy and torch arrays alike.

    >>> METRICS("pytorch")["topk"](k=5).name
    'top5'
    """

    def __init__(self, framework: str) -> None:
        known = (*ADAPTORS, *_FRAMEWORKS)
        if framework not in known:
            raise ConfigError(f"METRICS: unknown framework {framework!r}; {close_matches(str(framework), known)}")
        self.framework = framework

    def __getitem__(self, name: str) -> Callable[..., BaseMetric]:
        return metrics.METRICS[_registered(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(metrics.METRICS)

    def __len__(self) -> int:
        return len(list(metrics.METRICS))

    def register(self, name: str, metric_cls: Callable[..., BaseMetric]) -> None:
        """Add a metric; a name is given once."""
        metrics.METRICS.add(name, metric_cls)


class Metric(ObjectMetric):
    """A metric by ``name`` with its options, or an object of the user's ``metric_cls`` made with them.

    >>> Metric(name="topk", k=5).name
    'top5'
    """

    def __init__(self, metric_cls: Callable[..., Any] | None = None, name: str = "user_metric", **options: Any) -> None:
        if metric_cls is None:
            made: Any = metrics.resolve_metric({_registered(name): options})
            super().__init__(made)
            self.name = made.name
        elif callable(metric_cls):
            super().__init__(metric_cls(**options))
            self.name = name
        else:
            raise ConfigError(f"metric_cls is a {type(metric_cls).__name__}; expected a class with update and result")


def _registered(name: str) -> str:
    return name if name in metrics.METRICS else str(name).lower()
