"""TEQ."""

from __future__ import annotations

from pydantic import Field

from neural_compressor.config.composition import register_config
from neural_compressor.torch.quantization.config.fields import Flag, LayerMap
from neural_compressor.torch.quantization.config.rtn import RoundingConfig


@register_config("torch", "teq")
class TEQConfig(RoundingConfig):
    """TEQ: scales of the inputs as in AWQ, trained by gradient descent.

    ``absorb_to_layer`` and ``folding`` are the ``absorb_layer_dict`` and ``folding`` of :class:`AWQConfig`;
    ``use_mse_search`` searches the ranges too. ``amp`` is that of
    :class:`GPTQConfig`.
    """

    use_layer_wise: Flag = False
    double_quant_use_sym: Flag = True
    absorb_to_layer: LayerMap = Field(default_factory=dict)
    folding: Flag = True
    amp: Flag = True

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True
