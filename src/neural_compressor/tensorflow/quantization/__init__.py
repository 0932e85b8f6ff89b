"""The front for TensorFlow and Keras: configurations, ``quantize_model``, ``autotune``, and models that can be saved."""

from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.tensorflow.quantization.autotune import autotune
from neural_compressor.tensorflow.quantization.config import (
    DynamicQuantConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    get_all_config_set,
    get_default_sq_config,
    get_default_static_quant_config,
)
from neural_compressor.tensorflow.quantization.model import Model
from neural_compressor.tensorflow.quantization.quantize import quantize_model

__all__ = [
    "DynamicQuantConfig",
    "Model",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TuningConfig",
    "autotune",
    "get_all_config_set",
    "get_default_sq_config",
    "get_default_static_quant_config",
    "quantize_model",
]
