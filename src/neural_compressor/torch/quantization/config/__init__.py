"""What a user asks of PyTorch quantization: a configuration for each algorithm, and what to tune over."""

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.defaults import (
    get_default_AutoRound_config,
    get_default_autoround_config,
    get_default_awq_config,
    get_default_double_quant_config,
    get_default_dynamic_config,
    get_default_fp8_config,
    get_default_gptq_config,
    get_default_hqq_config,
    get_default_mixed_precision_config,
    get_default_mx_config,
    get_default_rtn_config,
    get_default_sq_config,
    get_default_static_config,
    get_default_teq_config,
    get_woq_tuning_config,
)
from neural_compressor.torch.quantization.config.fp8 import FP8Config
from neural_compressor.torch.quantization.config.hybrid import HybridGPTQConfig
from neural_compressor.torch.quantization.config.int8 import DynamicQuantConfig, StaticQuantConfig
from neural_compressor.torch.quantization.config.layerwise import AWQConfig, GPTQConfig, HQQConfig, RTNConfig, TEQConfig
from neural_compressor.torch.quantization.config.mixed_precision import MixedPrecisionConfig
from neural_compressor.torch.quantization.config.mx import MXQuantConfig
from neural_compressor.torch.quantization.config.sets import (
    INT8StaticQuantConfig,
    get_all_config_set,
    get_default_fp8_config_set,
    get_default_mixed_precision_config_set,
    get_rtn_double_quant_config_set,
)
from neural_compressor.torch.quantization.config.smooth import SmoothQuantConfig

__all__ = [
    "AWQConfig",
    "AutoRoundConfig",
    "ComposableConfig",
    "ComposedConfig",
    "DynamicQuantConfig",
    "FP8Config",
    "GPTQConfig",
    "HQQConfig",
    "HybridGPTQConfig",
    "INT8StaticQuantConfig",
    "MXQuantConfig",
    "MixedPrecisionConfig",
    "RTNConfig",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TEQConfig",
    "TuningConfig",
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
    "get_default_rtn_config",
    "get_default_sq_config",
    "get_default_static_config",
    "get_default_teq_config",
    "get_rtn_double_quant_config_set",
    "get_woq_tuning_config",
]
