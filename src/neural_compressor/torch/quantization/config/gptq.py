"""GPTQ."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composition import register_config
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization.config.double_quant import DoubleQuantConfig
from neural_compressor.torch.quantization.config.fields import (
    Bits,
    Count,
    Flag,
    Fraction,
    GroupSize,
    Path,
    ScaleSearch,
    WeightDtype,
)


@register_config("torch", "gptq")
class GPTQConfig(DoubleQuantConfig):
    """GPTQ: weights not yet rounded make up for the error of those that are.

    ``act_order`` takes the inputs with the largest activations first, ``hybrid_order`` does so group by group without
    moving weights between groups. ``block_size`` changes the speed only. Models are always worked on block by block:
    ``use_block_wise`` is another word for ``use_layer_wise``.

    Two additions to the published algorithm are on, because language models lose less with each: ``correct_upstream``
    makes a layer aim at the outputs of the float model, not at its own on inputs that already carry an error, and
    ``scale_search`` looks for the scales with the least loss. ``correct_upstream=False, scale_search="none"`` gives the
    algorithm as published. ``hadamard`` and ``use_full_range`` are those of :class:`RTNConfig`.

    With ``amp`` calibration data runs through the blocks in bfloat16 where the device is fast at it (weights of float32
    alone); ``amp=False`` keeps it in the type of the weights.
    """

    dtype: WeightDtype = "int"
    bits: Bits = 4
    use_sym: Flag = True
    group_size: GroupSize = 32
    use_mse_search: Flag = False
    use_layer_wise: Flag = False
    use_block_wise: Flag = False
    model_path: Path = ""
    use_double_quant: Flag = False
    double_quant_dtype: WeightDtype = "int"
    double_quant_bits: Bits = 8
    double_quant_use_sym: Flag = False
    double_quant_group_size: GroupSize = 256
    act_order: Flag = False
    hybrid_order: Flag = False
    percdamp: Fraction = 0.01
    block_size: Count = 2048
    static_groups: Flag = False
    true_sequential: Flag = False
    quant_lm_head: Flag = False
    correct_upstream: Flag = True
    scale_search: ScaleSearch = "mse"
    hadamard: Flag = False
    use_full_range: Flag = True
    amp: Flag = True

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        if not (values["act_order"] and values["hybrid_order"]):
            return values
        if {"act_order", "hybrid_order"} <= given:
            raise ConfigError(
                f"{cls.__name__}: act_order and hybrid_order are two orders of the same inputs; choose one"
            )
        return {**values, "hybrid_order": False}
