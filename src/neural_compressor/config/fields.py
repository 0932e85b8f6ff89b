"""Field types that several configuration classes share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from neural_compressor.config.op_rule import rule_dict
from neural_compressor.config.validators import BACKENDS, DEVICES, as_list, flag, names, quant_level, seed, text, word
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches


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


def mixed_precisions(value: Any) -> tuple[str, ...]:
    """Precisions a mixed-precision model may use besides fp32, in the order of preference.

    >>> mixed_precisions("bf16")
    ('bf16',)
    """
    known = ("bf16", "fp16")
    found = as_list(value)
    for name in found:
        if name not in known:
            raise ConfigError(f"got {name!r}; {close_matches(str(name), known)}")
    if not found:
        raise ConfigError(f"got an empty list; known: {', '.join(known)}")
    return tuple(dict.fromkeys(found))


def _maybe_flag(value: Any) -> bool:
    return False if value is None else flag(value)


Flag = Annotated[bool, BeforeValidator(flag)]
OpTypeRules = Annotated[dict[str, Any], BeforeValidator(rule_dict("op_type_dict"))]
OpNameRules = Annotated[dict[str, Any], BeforeValidator(rule_dict("op_name_dict"))]
Device = Annotated[str, BeforeValidator(word(DEVICES))]
Backend = Annotated[str, BeforeValidator(word(BACKENDS))]
Names = Annotated[list[str], BeforeValidator(names)]
Text = Annotated[str, BeforeValidator(text)]
Seed = Annotated[int, BeforeValidator(seed)]
QuantLevel = Annotated[str | int, BeforeValidator(quant_level)]
ReduceRange = Annotated[bool, BeforeValidator(_maybe_flag)]
ExcludedPrecisions = Annotated[tuple[str, ...], BeforeValidator(excluded_precisions)]
