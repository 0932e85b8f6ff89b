"""Configurations of a user, validated, and the rules that turn them into options op by op."""

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.criteria import AccuracyCriterion, Objective, TuningCriterion
from neural_compressor.config.quantization import (
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
    QuantizationAwareTrainingConfig,
)
from neural_compressor.config.tuning_config import TuningConfig

__all__ = [
    "AccuracyCriterion",
    "ComposableConfig",
    "ComposedConfig",
    "MixedPrecisionConfig",
    "Objective",
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "TuningConfig",
    "TuningCriterion",
]
