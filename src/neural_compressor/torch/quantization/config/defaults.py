"""The default configuration of each algorithm, sets to tune over, and other names that the 3.x API has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import FRAMEWORK_QUERIES, FrameworkQueries, check_processor
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.fp8 import FP8Config
from neural_compressor.torch.quantization.config.int8 import DynamicQuantConfig, SmoothQuantConfig, StaticQuantConfig
from neural_compressor.torch.quantization.config.layerwise import AWQConfig, GPTQConfig, HQQConfig, RTNConfig, TEQConfig
from neural_compressor.torch.quantization.config.mixed_precision import MixedPrecisionConfig
from neural_compressor.torch.quantization.config.mx import MXQuantConfig
from neural_compressor.torch.structure.ops import find_ops

__all__ = [
    "INT8StaticQuantConfig",
    "get_all_config_set",
    "get_default_AutoRound_config",
    "get_default_autoround_config",
    "get_default_awq_config",
    "get_default_double_quant_config",
    "get_default_dynamic_config",
    "get_default_fp8_config",
    "get_default_fp8_config_set",
    "get_default_gptq_config",
    "get_default_hqq_config",
    "get_default_mixed_precision_config",
    "get_default_mixed_precision_config_set",
    "get_default_mx_config",
    "get_default_qat_module_mappings",
    "get_default_rtn_config",
    "get_default_sq_config",
    "get_default_static_config",
    "get_default_teq_config",
    "get_rtn_double_quant_config_set",
    "get_woq_tuning_config",
]

C = TypeVar("C", bound=ComposableConfig)

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


def _default(config: type[C]) -> Callable[..., C]:
    """A function that gives the default configuration of an algorithm."""

    def get_default_config(processor_type: str | None = None) -> C:
        check_processor(processor_type)
        return config()

    get_default_config.__doc__ = f"The default configuration :class:`{config.__name__}`."
    return get_default_config


get_default_rtn_config = _default(RTNConfig)
get_default_gptq_config = _default(GPTQConfig)
get_default_awq_config = _default(AWQConfig)
get_default_teq_config = _default(TEQConfig)
get_default_hqq_config = _default(HQQConfig)
get_default_AutoRound_config = _default(AutoRoundConfig)  # noqa: N816  the name existing programs call
get_default_autoround_config = get_default_AutoRound_config
get_default_mx_config = _default(MXQuantConfig)
get_default_dynamic_config = _default(DynamicQuantConfig)
get_default_static_config = _default(StaticQuantConfig)
get_default_sq_config = _default(SmoothQuantConfig)
get_default_fp8_config = _default(FP8Config)
get_default_mixed_precision_config = _default(MixedPrecisionConfig)


def get_default_double_quant_config(type: str = "BNB_NF4") -> RTNConfig:
    """RTN with quantized scales, laid out as ``"BNB_NF4"`` or ``"GGML_TYPE_Q4_K"``."""
    if type not in _DOUBLE_QUANT:
        raise ConfigError(f"unknown double quantization {type!r}; {close_matches(str(type), _DOUBLE_QUANT)}")
    return RTNConfig(**_DOUBLE_QUANT[type])


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


INT8StaticQuantConfig = StaticQuantConfig


def get_default_qat_module_mappings() -> dict[type[nn.Module], str]:
    """The scheme that layers are trained in where nothing is said, by their type."""
    return {nn.Linear: "MXFP8"}


def trained_scheme(given: Any) -> Any:
    """``{nn.Linear: "MXFP4"}`` as a configuration, also where nothing is given; anything else comes back as it is."""
    schemes = get_default_qat_module_mappings() if given is None else given
    if not isinstance(schemes, Mapping) or not any(isinstance(kind, type) for kind in schemes):
        return given
    if set(schemes) != {nn.Linear}:
        raise ConfigError(
            f"prepare_qat: got schemes for {', '.join(map(str, schemes))}, expected {{nn.Linear: 'MXFP4'}}; other layers "
            "are trained with a configuration such as StaticQuantConfig"
        )
    return AutoRoundConfig(scheme=schemes[nn.Linear], iters=0, disable_opt_rtn=True)


def get_rtn_double_quant_config_set() -> list[RTNConfig]:
    """Round to nearest with scales in float, and in the two well-known layouts with quantized scales."""
    return [RTNConfig(), *(get_default_double_quant_config(name) for name in ("BNB_NF4", "GGML_TYPE_Q4_K"))]


def get_default_fp8_config_set() -> list[FP8Config]:
    """FP8 with scales of the device, of powers of two, and of any value."""
    return [FP8Config(scale_method=name) for name in ("maxabs_hw", "maxabs_pow2", "maxabs_arbitrary")]


def get_default_mixed_precision_config_set() -> list[MixedPrecisionConfig]:
    """Both half precisions."""
    return [MixedPrecisionConfig(dtype=name) for name in ("bf16", "fp16")]


def get_all_config_set() -> list[ComposableConfig]:
    """One of everything that quantizes ops as they are: weights alone, then int8, then fp8, then half precision."""
    return [
        *get_woq_tuning_config(),
        StaticQuantConfig(),
        SmoothQuantConfig(),
        DynamicQuantConfig(),
        *get_default_fp8_config_set(),
        *get_default_mixed_precision_config_set(),
    ]


def _ops(model: Any) -> dict[str, str]:
    return dict(find_ops(model)[0].keys())


FRAMEWORK_QUERIES.add("torch", FrameworkQueries(_ops, get_all_config_set))
