"""The default configuration of each algorithm, and sets to tune over."""

from __future__ import annotations

from typing import Any

from neural_compressor.onnx.graph.sum_order import ANY
from neural_compressor.onnx.quantization.config.integer import DynamicQuantConfig, SmoothQuantConfig, StaticQuantConfig
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.config.weight_only import AWQConfig, GPTQConfig, HQQConfig, RTNConfig
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod


def get_default_static_config() -> StaticQuantConfig:
    """The default configuration of static quantization."""
    return StaticQuantConfig()


def get_default_dynamic_config() -> DynamicQuantConfig:
    """The default configuration of dynamic quantization."""
    return DynamicQuantConfig()


def get_default_sq_config() -> SmoothQuantConfig:
    """The default configuration of SmoothQuant."""
    return SmoothQuantConfig()


def get_default_rtn_config() -> RTNConfig:
    """The default configuration of RTN."""
    return RTNConfig()


def get_default_gptq_config() -> GPTQConfig:
    """The default configuration of GPTQ."""
    return GPTQConfig()


def get_default_awq_config() -> AWQConfig:
    """The default configuration of AWQ."""
    return AWQConfig()


def get_default_hqq_config() -> HQQConfig:
    """The default configuration of HQQ."""
    return HQQConfig()


def get_woq_tuning_config() -> list[OnnxConfig]:
    """Weight-only configurations to tune over, the cheapest first: those without data, then those that need some.

    >>> [config.name for config in get_woq_tuning_config()]
    ['rtn', 'rtn', 'hqq', 'awq', 'gptq', 'gptq']
    """
    return [
        RTNConfig(weight_sym=False),
        RTNConfig(weight_sym=False, mse=True),
        HQQConfig(),
        AWQConfig(weight_sym=False),
        GPTQConfig(weight_sym=False),
        GPTQConfig(weight_sym=False, quant_last_matmul=False),
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
