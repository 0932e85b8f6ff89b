"""The words a configuration field may hold, and validators that say which ones are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

DEVICES = ("cpu", "gpu", "npu", "xpu")
BACKENDS = ("default", "itex", "ipex", "onnxrt_trt_ep", "onnxrt_cuda_ep", "onnxrt_dnnl_ep", "onnxrt_dml_ep")
DOMAINS = ("auto", "cv", "object_detection", "nlp", "recommendation_system")
QUANT_FORMATS = ("default", "QDQ", "QOperator")
APPROACHES = ("static", "dynamic", "auto", "weight_only")
QUANT_LEVELS = ("auto", 0, 1)
FLOAT_PRECISIONS = ("bf16", "fp16", "fp32")
"""Floating-point precisions an op can be left in, the cheapest first."""


def word(known: tuple[str, ...]) -> Callable[[Any], str]:
    """A validator that admits the words in ``known``.

    >>> word(DEVICES)("cpuu")
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: got 'cpuu'; did you mean 'cpu', ...? Known: cpu, gpu, npu, xpu
    """

    def check(value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")

    return check


def quant_level(value: Any) -> str | int:
    """Validate a quantization level: ``'auto'``, 0 or 1."""
    if not isinstance(value, bool) and value in QUANT_LEVELS:
        return str(value) if value == "auto" else int(value)
    raise ConfigError(f"got {value!r}; known: 'auto', 0 (conservative), 1 (the strategy of the tuning criterion)")


def flag(value: Any) -> bool:
    """Validate a yes or no."""
    if isinstance(value, bool):
        return value
    raise ConfigError(f"got {value!r}, expected True or False")


def at_least(smallest: int) -> Callable[[Any], int]:
    """A validator that admits whole numbers from ``smallest`` on."""

    def check(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= smallest:
            return value
        raise ConfigError(f"got {value!r}, expected a whole number >= {smallest}")

    return check


def text(value: Any) -> str:
    """Validate a string."""
    if isinstance(value, str):
        return value
    raise ConfigError(f"got {value!r}, expected a string")


def names(value: Any) -> list[str]:
    """Validate names: a string, or a list of strings; None is an empty list."""
    found = [] if value is None else as_list(value)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"got {value!r}, expected a name or a list of names")
    return found


def seed(value: Any) -> int:
    """Validate what a random generator starts from: every generator takes 32 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32:
        return value
    raise ConfigError(f"got {value!r}, expected a whole number from 0 to {2**32 - 1}")


def non_negative(value: Any) -> float:
    """Validate a finite number that is zero or more.

    >>> non_negative(0.01)
    0.01
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return value
    raise ConfigError(f"got {value!r}, expected a finite number >= 0")


def as_list(value: Any) -> list[Any]:
    """One value or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def listed(values: Iterable[Any]) -> str:
    """Values as an error message shows them.

    >>> listed(["a", 1])
    "'a', 1"
    """
    return ", ".join(repr(value) for value in values)
