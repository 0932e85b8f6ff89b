"""Test suites for what a third party can add: subclass one, supply its ``make_`` methods, inherit the tests."""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: Where each suite stands.
_SUITES = {
    "AdaptorContract": "adaptor",
    "AlgorithmContract": "algorithm",
    "DTypeContract": "dtype",
    "FormatContract": "format",
    "ObserverContract": "observer",
    "StrategyContract": "strategy",
}

__all__ = [
    "AdaptorContract",
    "AlgorithmContract",
    "DTypeContract",
    "FormatContract",
    "ObserverContract",
    "StrategyContract",
]


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    import pytest

    module = f"{__name__}.{_SUITES[name]}"
    # Without this a failing assert in a suite would show no values.
    if module not in sys.modules:
        pytest.register_assert_rewrite(module)
    return getattr(importlib.import_module(module), name)
