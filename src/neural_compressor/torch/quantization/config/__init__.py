"""Configurations of PyTorch quantization, one for each algorithm, and sets to tune over."""

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.torch.quantization.config import defaults
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.defaults import *  # noqa: F403
from neural_compressor.torch.quantization.config.fp8 import FP8Config
from neural_compressor.torch.quantization.config.int8 import DynamicQuantConfig, SmoothQuantConfig, StaticQuantConfig
from neural_compressor.torch.quantization.config.layerwise import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    HybridGPTQConfig,
    RTNConfig,
    TEQConfig,
)
from neural_compressor.torch.quantization.config.mixed_precision import MixedPrecisionConfig
from neural_compressor.torch.quantization.config.mx import MXQuantConfig

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
    "MXQuantConfig",
    "MixedPrecisionConfig",
    "RTNConfig",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TEQConfig",
    "TuningConfig",
]
__all__ += defaults.__all__
