"""Schemes of :class:`AutoRoundConfig` by name: what each says of weights and activations."""

from __future__ import annotations

import re
from typing import Any

from neural_compressor.config.validators import is_whole
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization.config.fields import dtype_of

_SCHEME = re.compile(r"W([1-8])A([1-8]|16|32)(?:G(\d+))?")
BLOCK_SCHEMES = {"MXFP4": "mxfp4", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
"""Schemes named after the format of both weights and activations."""
_CHANNEL_SCHEMES: dict[str, dict[str, Any]] = {
    **{key: {"bits": 8, "act_bits": 8, "group_size": -1} for key in ("INT8", "INT8_W8A8")},
    "FP8_STATIC": {
        **dict.fromkeys(("dtype", "act_dtype"), "fp8_e4m3"),
        **{"bits": 8, "act_bits": 8, "group_size": -1, "act_dynamic": False},
    },
}
"""Schemes with one scale a channel of the weight."""
FLOAT_BITS = (16, 32)


def activation_bits(value: Any) -> int:
    if is_whole(value) and (1 <= value <= 8 or value in FLOAT_BITS):
        return int(value)
    raise ConfigError(f"got {value!r}, expected 16 or 32 to leave activations in float, or 1 to 8 bits")


def scheme_name(value: Any) -> str:
    name = value.upper() if isinstance(value, str) else ""
    if name in (*BLOCK_SCHEMES, *_CHANNEL_SCHEMES) or _SCHEME.fullmatch(name):
        return name
    raise ConfigError(
        f"got {value!r}, expected the bits of weights and activations as in 'W4A16', with a group size as in 'W2A16G64', "
        f"or one of {', '.join((*BLOCK_SCHEMES, *_CHANNEL_SCHEMES))}"
    )


def scheme_list(value: Any) -> tuple[str, ...] | None:
    """Schemes to choose from; a list, or text with commas."""
    listed = value.split(",") if isinstance(value, str) else value
    if value is None:
        return None
    if not isinstance(listed, list | tuple) or not listed:
        raise ConfigError(f"got {value!r}, expected schemes to choose from, as in ['W4A16', 'W8A16']")
    return tuple(dict.fromkeys(scheme_name(each.strip() if isinstance(each, str) else each) for each in listed))


def scheme_fields(name: str) -> dict[str, Any]:
    """The parameters that a scheme stands for.

    >>> scheme_fields("W2A16G64")
    {'bits': 2, 'act_bits': 16, 'group_size': 64}
    """
    if name in BLOCK_SCHEMES:
        block = BLOCK_SCHEMES[name]
        kind = dtype_of(block, 0)
        return {"dtype": kind.name, "act_dtype": kind.name, "bits": kind.bits, "act_bits": kind.bits}
    if name in _CHANNEL_SCHEMES:
        return dict(_CHANNEL_SCHEMES[name])
    found = _SCHEME.fullmatch(name)
    weight, activation, group = found.groups() if found else (None, None, None)
    fields = {"bits": weight, "act_bits": activation, "group_size": group}
    return {field: int(text) for field, text in fields.items() if text is not None}
