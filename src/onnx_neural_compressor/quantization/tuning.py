"""Try configurations until one keeps the accuracy promise."""

from neural_compressor.common.base_tuning import (
    ConfigLoader,
    ConfigSet,
    Evaluator,
    Sampler,
    SequentialSampler,
    TuningMonitor,
    init_tuning,
)
from neural_compressor.onnx.quantization.config import TuningConfig, get_all_config_set
from neural_compressor.onnx.quantization.tuning import autotune

__all__ = [
    "ConfigLoader",
    "ConfigSet",
    "Evaluator",
    "Sampler",
    "SequentialSampler",
    "TuningConfig",
    "TuningMonitor",
    "autotune",
    "get_all_config_set",
    "init_tuning",
]
