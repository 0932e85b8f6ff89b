"""Parameters that may be one value or a list of values to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from pydantic import PlainValidator

from neural_compressor.errors import ConfigError


def one_or_more(check: Callable[[Any], Any]) -> PlainValidator:
    """The validator of a parameter that is one value, or a list of values that spans a space.

    ``check`` admits a single value. A list of one value is that value, and a value is listed once. The static type of the
    field stays that of a single value, which is what a configuration holds wherever a model is quantized with it.

    >>> from neural_compressor.config.words import flag
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


def combinations(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every choice of one value from each list in ``values``, the last list varying fastest.

    >>> [c["bits"] for c in combinations({"bits": [4, 8], "sym": True})]
    [4, 8]
    """
    axes = [value if isinstance(value, list) else [value] for value in values.values()]
    for choice in product(*axes):
        yield dict(zip(values, choice, strict=True))
