"""The default configuration of each algorithm, and sets to tune over."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.floats import FP8Config, MixedPrecisionConfig, MXQuantConfig
from neural_compressor.torch.quantization.config.int8 import DynamicQuantConfig, StaticQuantConfig
from neural_compressor.torch.quantization.config.layerwise import AWQConfig, GPTQConfig, HQQConfig, RTNConfig, TEQConfig

_DOUBLE_QUANT: dict[str, dict[str, Any]] = {
    "BNB_NF4": {
        "dtype": "nf4",
        "group_size": 32,
        "use_double_quant": True,
        "double_quant_bits": 8,
        "double_quant_group_size": 256,
    },
    "GGML_TYPE_Q4_K": {
        "use_sym": False,
        "group_size": 32,
        "use_double_quant": True,
        "double_quant_bits": 6,
        "double_quant_use_sym": True,
        "double_quant_group_size": 8,
    },
}
"""Two well-known layouts with quantized scales."""


def get_default_rtn_config() -> RTNConfig:
    """The default configuration of RTN."""
    return RTNConfig()


def get_default_gptq_config() -> GPTQConfig:
    """The default configuration of GPTQ."""
    return GPTQConfig()


def get_default_awq_config() -> AWQConfig:
    """The default configuration of AWQ."""
    return AWQConfig()


def get_default_teq_config() -> TEQConfig:
    """The default configuration of TEQ."""
    return TEQConfig()


def get_default_hqq_config() -> HQQConfig:
    """The default configuration of HQQ."""
    return HQQConfig()


def get_default_AutoRound_config() -> AutoRoundConfig:  # noqa: N802  the name existing programs call
    """The default configuration of AutoRound."""
    return AutoRoundConfig()


get_default_autoround_config = get_default_AutoRound_config


def get_default_double_quant_config(type: str = "BNB_NF4") -> RTNConfig:
    """RTN with quantized scales, laid out as ``"BNB_NF4"`` or ``"GGML_TYPE_Q4_K"``."""
    if type not in _DOUBLE_QUANT:
        raise ConfigError(f"unknown double quantization {type!r}; {close_matches(str(type), _DOUBLE_QUANT)}")
    return RTNConfig(**_DOUBLE_QUANT[type])


def get_default_mx_config() -> MXQuantConfig:
    """The default configuration of the MX formats."""
    return MXQuantConfig()


def get_default_dynamic_config() -> DynamicQuantConfig:
    """The default configuration of dynamic quantization."""
    return DynamicQuantConfig()


def get_default_static_config() -> StaticQuantConfig:
    """The default configuration of static quantization."""
    return StaticQuantConfig()


def get_default_fp8_config() -> FP8Config:
    """The default configuration of fp8."""
    return FP8Config()


def get_default_mixed_precision_config() -> MixedPrecisionConfig:
    """The default configuration of mixed precision."""
    return MixedPrecisionConfig()


def get_woq_tuning_config() -> list[ComposableConfig]:
    """Weight-only configurations to tune over, the cheapest first: those without data, then those that need some, and
    last those that train.

    >>> [config.name for config in get_woq_tuning_config()]
    ['rtn', 'rtn', 'hqq', 'awq', 'gptq', 'gptq', 'autoround']
    """
    return [
        RTNConfig(use_sym=False, group_size=32),
        RTNConfig(use_sym=False, group_size=32, scale_search="mse"),
        HQQConfig(group_size=64),
        AWQConfig(use_sym=False, group_size=32),
        GPTQConfig(use_sym=False, group_size=32),
        GPTQConfig(use_sym=False, group_size=32, correct_upstream=True, scale_search="importance"),
        AutoRoundConfig(use_sym=False, group_size=32),
    ]
