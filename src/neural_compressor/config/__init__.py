"""Configurations of a user, validated, and the rules that turn them into options op by op."""

from neural_compressor.config.benchmark import BenchmarkConfig
from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.criteria import AccuracyCriterion, Objective, TuningCriterion
from neural_compressor.config.exporting import Torch2ONNXConfig
from neural_compressor.config.process_options import Options, options
from neural_compressor.config.quantization import (
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
    QuantizationAwareTrainingConfig,
)
from neural_compressor.config.tuning_config import TuningConfig

__all__ = [
    "AccuracyCriterion",
    "BenchmarkConfig",
    "ComposableConfig",
    "ComposedConfig",
    "MixedPrecisionConfig",
    "Objective",
    "Options",
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "Torch2ONNXConfig",
    "TuningConfig",
    "TuningCriterion",
    "options",
]

_OUT_OF_SCOPE = {
    "WeightPruningConfig": "pruning",
    "DistillationConfig": "distillation",
    "KnowledgeDistillationLossConfig": "distillation",
    "IntermediateLayersKnowledgeDistillationLossConfig": "distillation",
    "SelfKnowledgeDistillationLossConfig": "distillation",
    "NASConfig": "architecture search",
    "HPOConfig": "hyperparameter search",
}


def __getattr__(name: str) -> object:
    if name in _OUT_OF_SCOPE:
        raise ImportError(
            f"{name} is not here: this toolkit quantizes models of PyTorch, ONNX, Keras and TensorFlow, and "
            f"{_OUT_OF_SCOPE[name]} is out of its scope"
        )
    if name == "TF2ONNXConfig":
        raise ImportError(
            "TF2ONNXConfig is not here: TensorFlow models become ONNX models by the package tf2onnx (python -m "
            "tf2onnx.convert --saved-model FOLDER --output model.onnx), and the ONNX model is what is quantized"
        )
    if name == "ONNXQlinear2QDQConfig":
        raise ImportError(
            "ONNXQlinear2QDQConfig is not here: PostTrainingQuantConfig(quant_format='QDQ') writes an ONNX model with "
            "QuantizeLinear and DequantizeLinear in the first place"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
