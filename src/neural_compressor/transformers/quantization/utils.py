"""Names of float types, as strings and as types of torch."""

from __future__ import annotations

import torch

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

__all__ = ["convert_dtype_str2torch", "convert_dtype_torch2str"]

_TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def convert_dtype_str2torch(str_dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The type of torch that a name means, of ``"auto"`` fp32; a type and None stay as they are.

    >>> convert_dtype_str2torch("bf16"), convert_dtype_str2torch("float32")
    (torch.bfloat16, torch.float32)
    """
    if str_dtype is None or isinstance(str_dtype, torch.dtype):
        return str_dtype
    if str_dtype == "auto":
        return torch.float32
    try:
        found = _TYPES.get(dtype(str(str_dtype).removeprefix("torch.")).name)
    except ConfigError:
        found = None
    if found is None:
        raise ConfigError(f"torch has no data type {str_dtype!r} here; {close_matches(str(str_dtype), _TYPES)}")
    return found


def convert_dtype_torch2str(dtype: str | torch.dtype | None) -> str | None:
    """The name of a type of torch; a name and None stay as they are.

    >>> convert_dtype_torch2str(torch.float16)
    'fp16'
    """
    if dtype is None or isinstance(dtype, str):
        return dtype
    for name, kind in _TYPES.items():
        if kind is dtype:
            return name
    raise ConfigError(f"{dtype} has no name here; known: {', '.join(_TYPES)}")
