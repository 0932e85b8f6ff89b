"""Field types that several configuration classes share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from neural_compressor.config.op_rule import rule_dict
from neural_compressor.config.precisions import excluded_precisions
from neural_compressor.config.words import BACKENDS, DEVICES, flag, names, quant_level, seed, text, word


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
