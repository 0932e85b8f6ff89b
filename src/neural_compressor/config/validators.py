"""Validators of configuration fields, each an error that says what would be right, and the values that fields know.

At the end the types of fields that several classes have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainValidator

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

T = TypeVar("T")

DEVICES = ("cpu", "gpu", "npu", "xpu")
BACKENDS = ("default", "itex", "ipex", "onnxrt_trt_ep", "onnxrt_cuda_ep", "onnxrt_dnnl_ep", "onnxrt_dml_ep")
DOMAINS = ("auto", "cv", "object_detection", "nlp", "recommendation_system")
QUANT_FORMATS = ("default", "QDQ", "QOperator")
APPROACHES = ("static", "dynamic", "auto", "weight_only")
QUANT_LEVELS = ("auto", 0, 1)


def expecting(expected: str, admits: Callable[[Any], bool], convert: Callable[[Any], T]) -> Callable[[Any], T]:
    """A validator of values that it ``admits``, as ``convert`` gives them; the error for others says what is ``expected``.

    >>> expecting("an even number", lambda value: value % 2 == 0, int)(3)
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: got 3, expected an even number
    """

    def check(value: Any) -> T:
        if admits(value):
            return convert(value)
        raise ConfigError(f"got {value!r}, expected {expected}")

    return check


def word(known: Collection[str]) -> Callable[[Any], str]:
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


def names(value: Any) -> list[str]:
    """Validate names: a string, or a list of strings; None is an empty list."""
    found = [] if value is None else as_list(value)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"got {value!r}, expected a name or a list of names")
    return found


def as_list(value: Any) -> list[Any]:
    """One value or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def listed(values: Iterable[Any]) -> str:
    """Values as an error message shows them.

    >>> listed(["a", 1])
    "'a', 1"
    """
    return ", ".join(repr(value) for value in values)


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _own_kind(value: Any) -> Any:
    """An integer stays one; floats of other libraries become Python's."""
    return float(value) if isinstance(value, float) else value


def _as_it_is(value: Any) -> Any:
    return value


flag = expecting("True or False", lambda value: isinstance(value, bool), bool)
text: Callable[[Any], str] = expecting("a string", lambda value: isinstance(value, str), _as_it_is)
# Every random generator takes 32 bits.
seed = expecting(f"a whole number from 0 to {2**32 - 1}", lambda value: is_whole(value) and 0 <= value < 2**32, int)
finite: Callable[[Any], float] = expecting("a finite number", is_number, _own_kind)
non_negative: Callable[[Any], float] = expecting(
    "a finite number >= 0", lambda value: is_number(value) and value >= 0, _own_kind
)
positive = expecting("a finite number > 0", lambda value: is_number(value) and value > 0, float)
rate = expecting("a number above 0, and at most 1", lambda value: is_number(value) and 0 < value <= 1, float)
"""The step of a training, as a share of the range of what is trained."""
smoothing_alpha: Callable[[Any], float | str] = expecting(
    "a number from 0 (leave the activations) to 1 (all into the weights), or 'auto'",
    lambda value: value == "auto" if isinstance(value, str) else is_number(value) and 0 <= value <= 1,
    lambda value: value if value == "auto" else float(value),
)
group_size = expecting(
    "a positive group size, or -1 for one scale per channel",
    lambda value: is_whole(value) and (value == -1 or value > 0),
    int,
)


def only(right: bool, why: str) -> Callable[[Any], bool]:
    """A validator of a yes or no that has one answer here, for the reason ``why``."""

    def check(value: Any) -> bool:
        if flag(value) is right:
            return right
        raise ConfigError(f"got {value!r}, expected {right!r}: {why}")

    return check


def at_least(smallest: int) -> Callable[[Any], int]:
    """A validator that admits whole numbers from ``smallest`` on."""
    return expecting(f"a whole number >= {smallest}", lambda value: is_whole(value) and value >= smallest, int)


def whole_between(smallest: int, largest: int, what: str = "") -> Callable[[Any], int]:
    """A validator that admits whole numbers from ``smallest`` to ``largest``.

    >>> whole_between(1, 8, "bits")(99)
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: got 99, expected 1 to 8 bits
    """
    expected = f"{smallest} to {largest} {what}".rstrip()
    return expecting(expected, lambda value: is_whole(value) and smallest <= value <= largest, int)


def number_between(smallest: float, largest: float) -> Callable[[Any], float]:
    """A validator that admits numbers from ``smallest`` to ``largest``."""
    expected = f"a number from {smallest:g} to {largest:g}"
    return expecting(expected, lambda value: is_number(value) and smallest <= value <= largest, float)


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


def registered_dtype(value: Any) -> str:
    """Validate the name of any data type, in its registered spelling."""
    if not isinstance(value, str):
        raise ConfigError(f"got {value!r}, expected the name of a data type, such as 'int8'")
    return dtype(value).name


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
