"""Open Neural Compressor: make neural networks small and fast, and keep the accuracy that was promised."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
_LAZY = (
    "config",
    "quantization",
    "training",
    "adaptor",
    "strategy",
    "tuning",
    "dtypes",
    "schemes",
    "observers",
    "report",
)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
