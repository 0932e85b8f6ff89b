"""Open Neural Compressor: make neural networks small and fast, and keep the accuracy that was promised."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neural_compressor.config import (
        AccuracyCriterion,
        BenchmarkConfig,
        MixedPrecisionConfig,
        PostTrainingQuantConfig,
        QuantizationAwareTrainingConfig,
        TuningCriterion,
        options,
    )
    from neural_compressor.config.process_options import (
        set_random_seed,
        set_resume_from,
        set_tensorboard,
        set_workspace,
    )
    from neural_compressor.metric import METRICS, Metric
    from neural_compressor.model import Model

__version__ = "0.1.0"
__all__ = [
    "METRICS",
    "AccuracyCriterion",
    "BenchmarkConfig",
    "Metric",
    "MixedPrecisionConfig",
    "Model",
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "TuningCriterion",
    "options",
    "set_random_seed",
    "set_resume_from",
    "set_tensorboard",
    "set_workspace",
]

_MODULES = (
    "config",
    "quantization",
    "training",
    "mix_precision",
    "benchmark",
    "evaluation",
    "adaptor",
    "strategy",
    "tuning",
    "dtypes",
    "schemes",
    "observers",
    "report",
    "metric",
    "model",
    "common",
    "data",
    "objective",
    "utils",
)
_NAMES = {
    **dict.fromkeys(("METRICS", "Metric"), "metric"),
    "Model": "model",
    **dict.fromkeys(
        ("set_random_seed", "set_resume_from", "set_tensorboard", "set_workspace"), "config.process_options"
    ),
}
"""Where names stand that are not in :mod:`neural_compressor.config`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__ or name.endswith("Config"):
        return getattr(importlib.import_module(f"{__name__}.{_NAMES.get(name, 'config')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
