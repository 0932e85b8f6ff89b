"""Everything to tune ONNX models over, and what configurations are asked of models."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.queries import FRAMEWORK_QUERIES, FrameworkQueries
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.quantization.config import OnnxConfig, get_integer_tuning_config, get_woq_tuning_config
from neural_compressor.onnx.quantization.source_model import read_float_model


def get_all_config_set() -> list[OnnxConfig]:
    """Configurations of weights alone, then those of weights and activations."""
    return [*get_woq_tuning_config(), *get_integer_tuning_config()]


def _ops(model: Any) -> dict[str, str]:
    return dict(quantizable_nodes(read_float_model(model)).keys())


FRAMEWORK_QUERIES.add("onnxrt", FrameworkQueries(_ops, get_all_config_set))
