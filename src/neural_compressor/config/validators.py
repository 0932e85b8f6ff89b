"""Validators of configuration fields, each an error that says what would be right, and the values that fields know.

At the end the types of fields that several classes have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

DEVICES = ("cpu", "gpu", "npu", "xpu")
BACKENDS = ("default", "itex", "ipex", "onnxrt_trt_ep", "onnxrt_cuda_ep", "onnxrt_dnnl_ep", "onnxrt_dml_ep")
DOMAINS = ("auto", "cv", "object_detection", "nlp", "recommendation_system")
QUANT_FORMATS = ("default", "QDQ", "QOperator")
APPROACHES = ("static", "dynamic", "auto", "weight_only")
QUANT_LEVELS = ("auto", 0, 1)


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
        if is_whole(value) and value >= smallest:
            return int(value)
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
    if is_whole(value) and 0 <= value < 2**32:
        return int(value)
    raise ConfigError(f"got {value!r}, expected a whole number from 0 to {2**32 - 1}")


def finite(value: Any) -> float:
    """Validate a finite number.

    >>> finite(-1)
    -1
    """
    if is_number(value):
        return float(value) if isinstance(value, float) else value
    raise ConfigError(f"got {value!r}, expected a finite number")


def non_negative(value: Any) -> float:
    """Validate a finite number that is zero or more.

    >>> non_negative(0.01)
    0.01
    """
    if is_number(value) and value >= 0:
        return float(value) if isinstance(value, float) else value
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


def whole_between(smallest: int, largest: int, what: str = "") -> Callable[[Any], int]:
    """A validator that admits whole numbers from ``smallest`` to ``largest``.

    >>> whole_between(1, 8, "bits")(99)
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: got 99, expected 1 to 8 bits
    """

    def check(value: Any) -> int:
        if is_whole(value) and smallest <= value <= largest:
            return int(value)
        raise ConfigError(f"got {value!r}, expected {smallest} to {largest} {what}".rstrip())

    return check


def number_between(smallest: float, largest: float) -> Callable[[Any], float]:
    """A validator that admits numbers from ``smallest`` to ``largest``."""

    def check(value: Any) -> float:
        if is_number(value) and smallest <= value <= largest:
            return float(value)
        raise ConfigError(f"got {value!r}, expected a number from {smallest:g} to {largest:g}")

    return check


def rate(value: Any) -> float:
    """Validate the step of a training, as a share of the range of what is trained.

    >>> rate(0.005)
    0.005
    """
    if is_number(value) and 0 < value <= 1:
        return float(value)
    raise ConfigError(f"got {value!r}, expected a number above 0, and at most 1")


def positive(value: Any) -> float:
    """Validate a finite number above zero.

    >>> positive(0.005)
    0.005
    """
    if is_number(value) and value > 0:
        return float(value)
    raise ConfigError(f"got {value!r}, expected a finite number > 0")


def group_size(value: Any) -> int:
    """Validate how many weights share a scale: a positive number, or -1 for all of an output channel."""
    if is_whole(value) and (value == -1 or value > 0):
        return int(value)
    raise ConfigError(f"got {value!r}, expected a positive group size, or -1 for one scale per channel")


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def one_or_more(check: Callable[[Any], Any]) -> PlainValidator:
    """The validator of a parameter that is one value, or a list of values that spans a space.

    ``check`` admits a single value. A list of one value is that value, and a value is listed once. The static type of the
    field stays that of a single value, which is what a configuration holds wherever a model is quantized with it.

    >>> one_or_more(flag).func([True, False, True]), one_or_more(flag).func([True])
    ([True, False], True)
    """

    def validate(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return check(value)
        if not value:
            raise ConfigError("got an empty list, expected a value or a list of values to try")
        found: list[Any] = []
        for item in map(check, value):
            if item not in found:
                found.append(item)
        return found if len(found) > 1 else found[0]

    return PlainValidator(validate)


def optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``check`` that admits None too."""
    return lambda value: None if value is None else check(value)


def excluded_precisions(value: Any) -> tuple[str, ...]:
    """Precisions that no op may take, in their registered spelling; fp32 is what every op can fall back to.

    >>> excluded_precisions(["bfloat16"])
    ('bf16',)
    """
    found = tuple(dtype(name).name for name in names(value))
    if "fp32" in found:
        raise ConfigError(
            "fp32 cannot be excluded: it is the precision every op can fall back to; exclude others, such as bf16"
        )
    return tuple(dict.fromkeys(found))


Flag = Annotated[bool, BeforeValidator(flag)]
Seed = Annotated[int, BeforeValidator(seed)]
Names = Annotated[list[str], BeforeValidator(names)]
ExcludedPrecisions = Annotated[tuple[str, ...], BeforeValidator(excluded_precisions)]
