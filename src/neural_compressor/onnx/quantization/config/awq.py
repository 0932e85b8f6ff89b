"""AWQ."""

from __future__ import annotations

from typing import Any

from neural_compressor.config.composition import register_config
from neural_compressor.onnx.quantization.config.fields import Flag, Reader
from neural_compressor.onnx.quantization.config.weight_only import WeightOnlyConfig


@register_config("onnxrt", "awq")
class AWQConfig(WeightOnlyConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and scaled down before they come in. Needs
    data.

    ``enable_auto_scale`` searches the scales, ``enable_mse_search`` then the ranges.
    """

    enable_auto_scale: Flag = True
    enable_mse_search: Flag = True
    calibration_data_reader: Reader = None

    @property
    def needs_calibration(self) -> bool:
        """Where it quantizes anything."""
        return self.quantizes

    def algorithm_options(self) -> dict[str, Any]:
        return {"auto_scale": self.enable_auto_scale, "auto_clip": self.enable_mse_search}
