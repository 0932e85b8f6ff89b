"""Metrics under the names that programs written for the 2.x API import; see :mod:`neural_compressor.tuning.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neural_compressor.adaptor.contract import ADAPTORS
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.tuning import average_precision, metrics, text_metrics  # noqa: F401  which register theirs
from neural_compressor.tuning.metrics import Metric as BaseMetric
from neural_compressor.tuning.metrics import ObjectMetric
from neural_compressor.tuning.metrics import TopK as GeneralTopK
from neural_compressor.tuning.metrics import TopK as TensorflowTopK

__all__ = ["METRICS", "BaseMetric", "GeneralTopK", "Metric", "TensorflowTopK"]

_FRAMEWORKS = (
    "onnxrt_qlinearops",
    "onnxrt_integerops",
    "onnxrt_qdq",
    "onnxruntime",
    "pytorch_fx",
    "pytorch_ipex",
    "tensorflow_itex",
    "inteltensorflow",
    "mxnet",
)
"""Names that 2.x has for variants of a framework; metrics and data are the same in all."""


def known_frameworks() -> tuple[str, ...]:
    """The names of all frameworks."""
    return tuple(dict.fromkeys((*ADAPTORS, *_FRAMEWORKS)))


def known_framework(name: str, where: str) -> str:
    """``name``, if there is such a framework here."""
    known = known_frameworks()
    if name not in known:
        raise ConfigError(f"{where}: unknown framework {name!r}; {close_matches(str(name), known)}")
    return name


class METRICS(Mapping[str, Callable[..., BaseMetric]]):
    """The metrics of a ``framework`` by name, in any case. They work on NumPy and torch arrays alike.

    >>> METRICS("pytorch")["topk"](k=5).name
    'top5'
    """

    def __init__(self, framework: str) -> None:
        self.framework = known_framework(framework, "METRICS")

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
