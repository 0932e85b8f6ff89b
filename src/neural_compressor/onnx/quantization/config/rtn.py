"""Round to nearest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from neural_compressor.algorithms import RTNOptions
from neural_compressor.config.composition import register_config
from neural_compressor.config.numbers import positive
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.fields import Flag
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig


def _ratios(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"got {value!r}, expected a dict of ratios by the name of a weight or a node")
    return {name: positive(ratio) for name, ratio in value.items()}


@register_config("onnxrt", "rtn")
class RTNConfig(WeightOnlyConfig):
    """Round to nearest: each weight goes to the closest value of its grid. Needs no data.

    ``ratios`` shrinks the range of some weights: ``{"name of a weight or node": 0.9}``. ``mse`` searches the range with
    the least error for each group instead.

    >>> config = RTNConfig(weight_bits=[4, 8]).set_local("head", RTNConfig(weight_dtype="fp32"))
    >>> [each.weight_scheme().dtype.name for each in config.expand()]
    ['int4', 'int8']
    """

    ratios: Annotated[dict[str, float], PlainValidator(_ratios)] = Field(default_factory=dict)
    mse: Flag = RTNOptions().search is not None

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["mse"] and values["ratios"]:
            raise ConfigError(f"{cls.__name__}: ratios and mse both choose the range of a weight; leave one out")
        return super()._settled(values, given)
