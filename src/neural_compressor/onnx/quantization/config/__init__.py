"""Configurations of ONNX quantization, one for each algorithm, and sets to tune over."""

from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.onnx.quantization.config.defaults import (
    get_default_awq_config,
    get_default_dynamic_config,
    get_default_gptq_config,
    get_default_hqq_config,
    get_default_rtn_config,
    get_default_sq_config,
    get_default_static_config,
    get_integer_tuning_config,
    get_woq_tuning_config,
)
from neural_compressor.onnx.quantization.config.integer import (
    DynamicQuantConfig,
    IntegerConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
)
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.config.weight_only import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    WeightOnlyConfig,
)

__all__ = [
    "AWQConfig",
    "ComposedConfig",
    "DynamicQuantConfig",
    "GPTQConfig",
    "HQQConfig",
    "IntegerConfig",
    "OnnxConfig",
    "RTNConfig",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TuningConfig",
    "WeightOnlyConfig",
    "get_default_awq_config",
    "get_default_dynamic_config",
    "get_default_gptq_config",
    "get_default_hqq_config",
    "get_default_rtn_config",
    "get_default_sq_config",
    "get_default_static_config",
    "get_integer_tuning_config",
    "get_woq_tuning_config",
]
