"""AWQ."""

from __future__ import annotations

from pydantic import Field

from neural_compressor.config.composition import register_config
from neural_compressor.torch.quantization.config.fields import Flag, LayerMap
from neural_compressor.torch.quantization.config.rtn import RoundingConfig


@register_config("torch", "awq")
class AWQConfig(RoundingConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and the layer before them scaled down.

    ``use_auto_scale`` searches the scales, ``use_auto_clip`` (or ``use_mse_search``) then the ranges. ``folding`` lets the
    normalisation before take the scales in, and leaves them out where there is none; without it they are applied to the
    input at run time. ``absorb_layer_dict`` lists layers by the normalisation that takes in their scale, where watching
    the model run does not find it. ``amp`` is that of :class:`GPTQConfig`.
    """

    use_layer_wise: Flag = False
    double_quant_use_sym: Flag = True
    use_auto_scale: Flag = True
    use_auto_clip: Flag = True
    folding: Flag = False
    absorb_layer_dict: LayerMap = Field(default_factory=dict)
    amp: Flag = True

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True
