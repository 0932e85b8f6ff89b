"""Settings of ops and tensors by the names that programs of the 2.x API use in ``op_name_dict`` and ``op_type_dict``.

>>> from neural_compressor.config import PostTrainingQuantConfig
>>> PostTrainingQuantConfig(op_name_dict={"lm_head": FP32}).op_name_dict["lm_head"]["weight"]
{'dtype': ['fp32']}
"""

from __future__ import annotations

__all__ = [
    "BF16",
    "FP32",
    "INT8_SYM_KL_PERCHANNEL",
    "INT8_SYM_KL_PERTENSOR",
    "INT8_SYM_MINMAX_PERCHANNEL",
    "INT8_SYM_MINMAX_PERTENSOR",
    "UINT8_ASYM_KL_PERCHANNEL",
    "UINT8_ASYM_KL_PERTENSOR",
    "UINT8_ASYM_MINMAX_PERCHANNEL",
    "UINT8_ASYM_MINMAX_PERTENSOR",
]


def _op(dtype: str) -> dict[str, dict[str, list[str]]]:
    return {part: {"dtype": [dtype]} for part in ("weight", "activation")}


def _tensor(dtype: str, scheme: str, algorithm: str, granularity: str) -> dict[str, list[str]]:
    return {"dtype": [dtype], "scheme": [scheme], "algorithm": [algorithm], "granularity": [granularity]}


FP32 = _op("fp32")
BF16 = _op("bf16")
INT8_SYM_MINMAX_PERCHANNEL = _tensor("int8", "sym", "minmax", "per_channel")
INT8_SYM_MINMAX_PERTENSOR = _tensor("int8", "sym", "minmax", "per_tensor")
INT8_SYM_KL_PERCHANNEL = _tensor("int8", "sym", "kl", "per_channel")
INT8_SYM_KL_PERTENSOR = _tensor("int8", "sym", "kl", "per_tensor")
UINT8_ASYM_MINMAX_PERCHANNEL = _tensor("uint8", "asym", "minmax", "per_channel")
UINT8_ASYM_MINMAX_PERTENSOR = _tensor("uint8", "asym", "minmax", "per_tensor")
UINT8_ASYM_KL_PERCHANNEL = _tensor("uint8", "asym", "kl", "per_channel")
UINT8_ASYM_KL_PERTENSOR = _tensor("uint8", "asym", "kl", "per_tensor")
