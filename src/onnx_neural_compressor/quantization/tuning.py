"""Try configurations until one keeps the accuracy promise."""

from neural_compressor.onnx.quantization.config import TuningConfig
from neural_compressor.onnx.quantization.tuning import autotune

__all__ = ["TuningConfig", "autotune"]
