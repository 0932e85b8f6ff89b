"""AWQ."""

from __future__ import annotations

from neural_compressor.algorithms import AWQOptions
from neural_compressor.config.composition import register_config
from neural_compressor.onnx.quantization.config.fields import Flag, Reader
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig

_USUAL = AWQOptions()


@register_config("onnxrt", "awq")
class AWQConfig(WeightOnlyConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and scaled down before they come in. Needs
    data.

    ``enable_auto_scale`` searches the scales, ``enable_mse_search`` then the ranges.
    """

    enable_auto_scale: Flag = _USUAL.auto_scale
    enable_mse_search: Flag = _USUAL.auto_clip
    calibration_data_reader: Reader = None
