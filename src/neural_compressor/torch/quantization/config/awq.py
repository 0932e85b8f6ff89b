"""AWQ."""

from __future__ import annotations

from pydantic import Field

from neural_compressor.config.composition import register_config
from neural_compressor.torch.quantization.config.fields import Flag, LayerMap
from neural_compressor.torch.quantization.config.rtn import RoundingConfig


@register_config("torch", "awq")
class AWQConfig(RoundingConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and the layer before them scaled down.

    ``use_auto_scale`` searches the scales, ``use_auto_clip`` then the ranges. ``folding`` lets the layer before take the
    scales in; without it they are applied to the input at run time. ``absorb_layer_dict`` names the layers that take the
    scales of others, where watching the model run does not find them.
    """

    use_layer_wise: Flag = False
    double_quant_use_sym: Flag = True
    use_auto_scale: Flag = True
    use_auto_clip: Flag = True
    folding: Flag = False
    absorb_layer_dict: LayerMap = Field(default_factory=dict)

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True
