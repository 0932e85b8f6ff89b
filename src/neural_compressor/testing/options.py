"""Tuning configurations picked from what an adaptor says it can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neural_compressor.adaptor.capability import is_float_config
from neural_compressor.config.op_options import op_options
from neural_compressor.schemes import OpKey, OpScheme


def choices(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the options of a config, the first options first.

    >>> [c["activation"]["scheme"] for c in choices({"activation": {"dtype": "int8", "scheme": ["sym", "asym"]}})]
    ['sym', 'asym']
    """
    return (option.to_dict() for option in op_options([config]))


def default_tune_cfg(capability: Mapping[str, Any]) -> dict[str, Any]:
    """Each op with the first options of its first config."""
    return {"op": {key: next(choices(configs[0])) for key, configs in capability["opwise"].items()}}


def quantizable(capability: Mapping[str, Any]) -> list[OpKey]:
    """The ops with a quantized config."""
    return [key for key, configs in capability["opwise"].items() if not all(is_float_config(c) for c in configs)]


def static_choices(capability: Mapping[str, Any]) -> dict[OpKey, dict[str, Any]]:
    """For each op that has one, the first options of its first static config."""
    found: dict[OpKey, dict[str, Any]] = {}
    for key, configs in capability["opwise"].items():
        static = [c for c in configs if c["activation"].get("quant_mode") == "static"]
        if static and OpScheme.from_dict(next(choices(static[0]))).activation is not None:
            found[key] = next(choices(static[0]))
    return found


def kind_of(key: OpKey, config: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What makes two configs different enough to try both: op type, mode and precisions."""
    scheme = OpScheme.from_dict(next(choices(config)))
    return key[1], scheme.mode, scheme.precision, scheme.activation.dtype.name if scheme.activation else ""


def offers(configs: Iterable[Mapping[str, Any]], precision: str) -> bool:
    """Whether one of the configs is the float precision."""
    return any(is_float_config(c) and c["activation"]["dtype"] == precision for c in configs)


def float_choice(precision: str, configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The config of a float precision."""
    return next(dict(c) for c in configs if is_float_config(c) and c["activation"]["dtype"] == precision)
