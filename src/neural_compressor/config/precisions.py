"""Lists of precisions in a configuration."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.words import as_list
from neural_compressor.config.words import names as given_names
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches


def excluded_precisions(value: Any) -> tuple[str, ...]:
    """Precisions that no op may take, in their registered spelling; fp32 is what every op can fall back to.

    >>> excluded_precisions(["bfloat16"])
    ('bf16',)
    """
    names = tuple(dtype(name).name for name in given_names(value))
    if "fp32" in names:
        raise ConfigError(
            "fp32 cannot be excluded: it is the precision every op can fall back to; exclude others, such as bf16"
        )
    return tuple(dict.fromkeys(names))


def mixed_precisions(value: Any) -> tuple[str, ...]:
    """Precisions a mixed-precision model may use besides fp32, in the order of preference.

    >>> mixed_precisions("bf16")
    ('bf16',)
    """
    known = ("bf16", "fp16")
    names = as_list(value)
    for name in names:
        if name not in known:
            raise ConfigError(f"got {name!r}; {close_matches(str(name), known)}")
    if not names:
        raise ConfigError(f"got an empty list; known: {', '.join(known)}")
    return tuple(dict.fromkeys(names))
