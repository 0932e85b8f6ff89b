"""HQQ."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composition import register_config
from neural_compressor.config.parameter_space import one_or_more
from neural_compressor.config.words import flag
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.fields import GroupSize
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig


def _asymmetric(value: Any) -> bool:
    if flag(value):
        raise ConfigError("got True, expected False: HQQ fits zero points")
    return False


@register_config("onnxrt", "hqq")
class HQQConfig(WeightOnlyConfig):
    """HQQ: zero points are fitted so that a few weights far off cost little. Needs no data; always asymmetric."""

    weight_group_size: GroupSize = 64
    weight_sym: Annotated[bool, one_or_more(_asymmetric)] = False
