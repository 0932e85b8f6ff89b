"""HQQ."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composition import register_config
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization.config.fields import FLOAT, Bits, Flag, GroupSize, WeightDtype, dtype_of
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig


@register_config("torch", "hqq")
class HQQConfig(WeightOnlyConfig):
    """HQQ: zero points are fitted so that a few weights far off cost little. Needs no data; always asymmetric.

    ``quant_zero`` and ``quant_scale`` store the zero points and the scales in 8 bits, the scales in groups of
    ``scale_quant_group_size``.
    """

    dtype: WeightDtype = "int"
    bits: Bits = 4
    group_size: GroupSize = 64
    quant_zero: Flag = True
    quant_scale: Flag = False
    scale_quant_group_size: GroupSize = 128
    quant_lm_head: Flag = False

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        if values["dtype"] != FLOAT and not dtype_of(values["dtype"], values["bits"]).is_integer:
            raise ConfigError(
                f"{cls.__name__}.dtype: got {values['dtype']!r}, expected an integer type: HQQ fits zero points, and only "
                "integers have them"
            )
        return values
