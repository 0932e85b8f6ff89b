"""The settings of tuning; see :mod:`onnx_neural_compressor.quantization.tuning`."""

from neural_compressor.config.tuning_config import TuningConfig

__all__ = ["TuningConfig"]
