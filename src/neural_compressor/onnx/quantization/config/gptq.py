"""GPTQ."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.algorithms import GPTQOptions
from neural_compressor.config.composition import register_config
from neural_compressor.config.parameter_space import one_or_more
from neural_compressor.config.words import flag
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.fields import Count, Flag, Fraction, Reader
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig

_USUAL = GPTQOptions()


def _perchannel(value: Any) -> bool:
    if flag(value):
        return True
    raise ConfigError("got False, expected True: the kernels keep scales for each channel and group")


@register_config("onnxrt", "gptq")
class GPTQConfig(WeightOnlyConfig):
    """GPTQ: weights not yet rounded make up for the error of those that are. Needs data.

    ``actorder`` takes the inputs with the largest activations first. ``mse`` looks for the ranges with the least loss,
    without which a language model may gain nothing over rounding to nearest. ``correct_upstream`` makes a layer aim at the
    outputs of the float model, not at its own on inputs that already carry an error. ``percdamp`` steadies the
    statistics, ``block_size`` changes the speed only.
    """

    percdamp: Fraction = _USUAL.percdamp
    block_size: Count = _USUAL.block_size
    actorder: Flag = _USUAL.act_order
    mse: Flag = _USUAL.search is not None
    perchannel: Annotated[bool, one_or_more(_perchannel)] = True
    correct_upstream: Flag = _USUAL.upstream
    calibration_data_reader: Reader = None
