"""Sets of configurations to tune over, and other names, as the 3.x API has them."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.queries import FRAMEWORK_QUERIES, FrameworkQueries
from neural_compressor.torch.quantization.config.defaults import get_default_double_quant_config, get_woq_tuning_config
from neural_compressor.torch.quantization.config.fp8 import FP8Config
from neural_compressor.torch.quantization.config.int8 import DynamicQuantConfig, StaticQuantConfig
from neural_compressor.torch.quantization.config.layerwise import RTNConfig
from neural_compressor.torch.quantization.config.mixed_precision import MixedPrecisionConfig
from neural_compressor.torch.quantization.config.smooth import SmoothQuantConfig
from neural_compressor.torch.structure.ops import find_ops

INT8StaticQuantConfig = StaticQuantConfig


def get_rtn_double_quant_config_set() -> list[RTNConfig]:
    """Round to nearest with scales in float, and in the two well-known layouts with quantized scales."""
    return [RTNConfig(), *(get_default_double_quant_config(name) for name in ("BNB_NF4", "GGML_TYPE_Q4_K"))]


def get_default_fp8_config_set() -> list[FP8Config]:
    """FP8 with scales of the device, of powers of two, and of any value."""
    return [FP8Config(scale_method=name) for name in ("maxabs_hw", "maxabs_pow2", "maxabs_arbitrary")]


def get_default_mixed_precision_config_set() -> list[MixedPrecisionConfig]:
    """Both half precisions."""
    return [MixedPrecisionConfig(dtype=name) for name in ("bf16", "fp16")]


def get_all_config_set() -> list[ComposableConfig]:
    """One of everything that quantizes ops as they are: weights alone, then int8, then fp8, then half precision."""
    return [
        *get_woq_tuning_config(),
        StaticQuantConfig(),
        SmoothQuantConfig(),
        DynamicQuantConfig(),
        *get_default_fp8_config_set(),
        *get_default_mixed_precision_config_set(),
    ]


def _ops(model: Any) -> dict[str, str]:
    return dict(find_ops(model)[0].keys())


FRAMEWORK_QUERIES.add("torch", FrameworkQueries(_ops, get_all_config_set))
