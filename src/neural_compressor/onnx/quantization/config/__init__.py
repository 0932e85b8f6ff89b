"""What a user asks of ONNX quantization: a configuration for each algorithm, and what to tune over."""

from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.onnx.quantization.config.awq import AWQConfig
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
from neural_compressor.onnx.quantization.config.dynamic import DynamicQuantConfig
from neural_compressor.onnx.quantization.config.gptq import GPTQConfig
from neural_compressor.onnx.quantization.config.hqq import HQQConfig
from neural_compressor.onnx.quantization.config.integer import IntegerConfig
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.config.rtn import RTNConfig
from neural_compressor.onnx.quantization.config.smooth import SmoothQuantConfig
from neural_compressor.onnx.quantization.config.static import StaticQuantConfig
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig

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
