"""Configurations of ONNX quantization, one for each algorithm, and sets to tune over."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.composition import FRAMEWORK_QUERIES, FrameworkQueries
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.graph.sum_order import ANY
from neural_compressor.onnx.quantization.config.fields import OnnxConfig
from neural_compressor.onnx.quantization.config.integer import (
    DynamicQuantConfig,
    IntegerConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
)
from neural_compressor.onnx.quantization.config.weight_only import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    WeightOnlyConfig,
)
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat
from neural_compressor.onnx.quantization.source_model import read_float_model

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
    "get_all_config_set",
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

# The default configuration of an algorithm is its class called without arguments.
get_default_static_config = StaticQuantConfig
get_default_dynamic_config = DynamicQuantConfig
get_default_sq_config = SmoothQuantConfig
get_default_rtn_config = RTNConfig
get_default_gptq_config = GPTQConfig
get_default_awq_config = AWQConfig
get_default_hqq_config = HQQConfig


def get_woq_tuning_config(quant_format: Any = QuantFormat.QOperator) -> list[OnnxConfig]:
    """Weight-only configurations to tune over: 4 bits without data, then with data, then 8 bits, which lose next to nothing.

    All have the ``quant_format`` given.

    >>> [f"{config.name} {config.weight_bits}" for config in get_woq_tuning_config()]
    ['rtn 4', 'rtn 4', 'hqq 4', 'awq 4', 'gptq 4', 'gptq 4', 'rtn 8']
    """
    form = {"quant_format": quant_format}
    return [
        RTNConfig(weight_sym=False, **form),
        RTNConfig(weight_sym=False, mse=True, **form),
        HQQConfig(**form),
        AWQConfig(weight_sym=False, **form),
        GPTQConfig(weight_sym=False, **form),
        GPTQConfig(weight_sym=False, quant_last_matmul=False, **form),
        RTNConfig(weight_bits=8, **form),
    ]


def get_integer_tuning_config(target_cpu: str = ANY) -> list[OnnxConfig]:
    """Static configurations to tune over, then smoothed and dynamic ones, all for ``target_cpu``.

    The static ones are as fast as each other and differ in where they cut ranges off: nowhere, then ever more. Biases are
    corrected in all of them where the data admits it. Dynamic ones come last: in them convolutions compute in float.

    >>> [config.name for config in get_integer_tuning_config()]
    ['static_quant', 'static_quant', 'static_quant', 'static_quant', 'smooth_quant', 'dynamic_quant']
    """
    methods: list[dict[str, Any]] = [
        {"calibrate_method": CalibrationMethod.MinMax},
        {"calibrate_method": CalibrationMethod.MSE},
        {"calibrate_method": CalibrationMethod.Entropy},
        {"calibrate_method": CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 99.99}},
    ]
    return [
        *(StaticQuantConfig(per_channel=True, target_cpu=target_cpu, **method) for method in methods),
        SmoothQuantConfig(per_channel=True, alpha="auto", target_cpu=target_cpu),
        DynamicQuantConfig(per_channel=True, target_cpu=target_cpu),
    ]


def get_all_config_set() -> list[OnnxConfig]:
    """Configurations of weights alone, then those of weights and activations."""
    return [*get_woq_tuning_config(), *get_integer_tuning_config()]


def _ops(model: Any) -> dict[str, str]:
    return dict(quantizable_nodes(read_float_model(model)).keys())


FRAMEWORK_QUERIES.add("onnxrt", FrameworkQueries(_ops, get_all_config_set))
