"""The front for TensorFlow and Keras: configurations, ``quantize_model``, ``autotune``, and models that can be saved."""

from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.tensorflow.quantization.config import DynamicQuantConfig, SmoothQuantConfig, StaticQuantConfig
from neural_compressor.tensorflow.quantization.model import Model
from neural_compressor.tensorflow.quantization.quantize import quantize_model
from neural_compressor.tensorflow.quantization.tuning import autotune

__all__ = [
    "DynamicQuantConfig",
    "Model",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TuningConfig",
    "autotune",
    "quantize_model",
]
