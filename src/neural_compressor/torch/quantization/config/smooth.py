"""SmoothQuant: static quantization of a model whose inputs of layers are smoothed first."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.algorithms.smoothquant import alphas_between
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import is_number, number_between, one_or_more, word
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Pass
from neural_compressor.torch.quantization.config.fields import Flag, Fraction
from neural_compressor.torch.quantization.config.int8 import StaticQuantConfig


def _alpha(value: Any) -> float | str:
    if isinstance(value, str) and value == "auto":
        return "auto"
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    raise ConfigError(
        f"got {value!r}, expected a number from 0 (leave the activations) to 1 (all into the weights), or 'auto'"
    )


_SMOOTHING = (
    *("alpha", "folding", "scale_sharing", "init_alpha", "alpha_min", "alpha_max", "alpha_step"),
    *("shared_criterion", "do_blockwise"),
)


@register_config("torch", "smooth_quant")
class SmoothQuantConfig(StaticQuantConfig):
    """Weights and activations in integers, with outliers of activations moved into the weights first.

    ``alpha`` says how much, from 0 to 1; with ``"auto"`` each layer, or with ``do_blockwise`` each block, has what makes its
    error least, from ``alpha_min`` to ``alpha_max`` in steps of ``alpha_step``, beginning with ``init_alpha``. With
    ``folding`` scales go into the normalisation or layer before where that is exact; elsewhere a layer multiplies its input.
    ``scale_sharing`` gives layers that read the same value the same scales, and ``shared_criterion`` says which of their
    errors counts.

    >>> SmoothQuantConfig(alpha=0.7).passes
    (Pass(name='smooth', options={'alpha': 0.7}),)
    """

    alpha: Annotated[float | str, one_or_more(_alpha)] = 0.5
    folding: Flag = False
    scale_sharing: Flag = False
    init_alpha: Fraction = 0.5
    alpha_min: Fraction = 0.0
    alpha_max: Fraction = 1.0
    alpha_step: Annotated[float, one_or_more(number_between(0.01, 1))] = 0.1
    shared_criterion: Annotated[str, one_or_more(word(("max", "min", "mean")))] = "max"
    do_blockwise: Flag = False

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What is done to the whole model for the layers that have this configuration."""
        self.require_single()
        alphas_between(self.alpha_min, self.alpha_max, self.alpha_step)
        options = {name: value for name, (value, _) in self.changed(*_SMOOTHING).items()}
        return (*super().passes, Pass("smooth", options))
