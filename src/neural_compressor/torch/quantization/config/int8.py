"""Configurations of integer weights and activations: static, dynamic, and SmoothQuant."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from neural_compressor.algorithms.smoothquant import alphas_between
from neural_compressor.config.composition import register_config
from neural_compressor.config.recipes import learned_rounding_pass, learning_scope
from neural_compressor.config.tensor_fields import TensorFieldsConfig
from neural_compressor.config.validators import (
    ExcludedPrecisions,
    number_between,
    one_or_more,
    smoothing_alpha,
    word,
)
from neural_compressor.observers import OBSERVERS
from neural_compressor.schemes import Pass
from neural_compressor.torch.quantization.config.fields import Dtype, Flag, FoldedHadamard, Fraction, TorchConfig
from neural_compressor.torch.quantization.config.fp8 import FP8Config

Granularity = Annotated[str, one_or_more(word(("per_tensor", "per_channel", "per_block")))]
ActivationGranularity = Annotated[str, one_or_more(word(("per_tensor", "per_channel", "per_token", "per_group")))]
Algorithm = Annotated[str, one_or_more(word(OBSERVERS))]
LearnedRounding = Annotated[bool | str, one_or_more(learning_scope)]


class ActivationConfig(TensorFieldsConfig, TorchConfig):
    """What the configurations share that quantize weights and activations."""

    w_dtype: Dtype = "int8"
    w_sym: Flag = True
    w_granularity: Granularity = "per_channel"
    w_algo: Algorithm = "minmax"
    act_dtype: Dtype = "uint8"
    act_sym: Flag = False
    act_granularity: ActivationGranularity = "per_tensor"
    act_algo: Algorithm = "minmax"

    _weight: ClassVar[str] = "w"
    _algorithm: ClassVar[str] = "algo"
    _weights_alone: ClassVar[str] = "for weights alone use RTNConfig or another weight-only configuration"

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """Of a weight not the data type where none is named: quantized means 8 bits, unsigned ones for look-ups."""
        said = super().said
        if not self.changed("w_dtype", "act_dtype"):
            said.pop(("weight", "dtype"), None)
        return said

    @property
    def quantizes(self) -> bool:
        """Whether weights or activations are quantized, and not left in float."""
        return not self.op_scheme().is_float


@register_config("torch", "dynamic_quant")
class DynamicQuantConfig(ActivationConfig):
    """Weights quantized beforehand, the range of activations taken from each batch.

    >>> DynamicQuantConfig().op_scheme().mode
    'dynamic'
    """

    w_granularity: Granularity = "per_tensor"
    act_algo: Algorithm = "kl"
    hadamard: FoldedHadamard = False

    _mode: ClassVar[str] = "dynamic"


@register_config("torch", "static_quant")
class StaticQuantConfig(ActivationConfig):
    """Weights and activations quantized with ranges known beforehand, from calibration data.

    With ``fp8_config`` the call gives an :class:`FP8Config`. ``equalize`` makes layers in a row equally large in each
    channel first, for weights with one scale for all channels. ``range_search`` has the range of each activation with which
    the outputs of the model change least: for CNNs that int8 hurts. ``learned_rounding`` rounds weights up or down so that
    outputs of layers (True, ``"layer"``), or of blocks too (``"block"``, slower, for 4 bits and fewer), change least, and
    not to nearest: for weights with one scale, and for fewer bits. An ``act_algo`` that is given holds, ``"minmax"`` too;
    where it is not, each op has the one that the framework YAML lists first for it.

    >>> StaticQuantConfig().left_open, StaticQuantConfig(act_algo="minmax").left_open
    ((('activation', 'algorithm'),), ())
    """

    def __new__(cls, *args: Any, **values: Any) -> Any:
        """An instance, or the other configuration that ``fp8_config`` asks for."""
        return FP8Config(*args, **values) if "fp8_config" in values else super().__new__(cls)

    excluded_precisions: ExcludedPrecisions = ()
    hadamard: FoldedHadamard = False
    equalize: Flag = False
    range_search: Flag = False
    learned_rounding: LearnedRounding = False

    @property
    def passes(self) -> tuple[Pass, ...]:
        equalized = (Pass("equalize"),) if self.equalize else ()
        searched = (Pass("search_ranges"),) if self.range_search else ()
        learned = (learned_rounding_pass(self.learned_rounding),) if self.learned_rounding else ()
        return (*super().passes, *equalized, *searched, *learned)

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True

    @property
    def left_open(self) -> tuple[tuple[str, str], ...]:
        """The fields of :attr:`wanted`, by tensor and field, that are the framework's to choose."""
        return () if "act_algo" in self.model_fields_set else (("activation", "algorithm"),)

    def _values(self) -> dict[str, Any]:
        """Without what is left open: what is written or copied leaves it open again."""
        return {name: value for name, value in super()._values().items() if name != "act_algo" or not self.left_open}


@register_config("torch", "smooth_quant")
class SmoothQuantConfig(StaticQuantConfig):
    """Weights and activations in integers, with outliers of activations moved into the weights first.

    ``alpha`` says how much, from 0 to 1; with ``"auto"`` each layer, or with ``do_blockwise`` each block, has what makes its
    error least, from ``alpha_min`` to ``alpha_max`` in steps of ``alpha_step``, and ``init_alpha`` where nothing errs less
    on both halves of the data (of two calls, block by block). With ``folding`` scales go into the normalisation or layer
    before where that is exact, and its weight has no single scale for all channels; elsewhere a layer multiplies its input.
    ``scale_sharing`` gives layers that read the same value the same scales, and ``shared_criterion`` says which of their
    errors counts.

    >>> SmoothQuantConfig(alpha=0.7).passes
    (Pass(name='smooth', options={'alpha': 0.7}),)
    """

    alpha: Annotated[float | str, one_or_more(smoothing_alpha)] = 0.5
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
        self.require_single()
        alphas_between(self.alpha_min, self.alpha_max, self.alpha_step)
        own = [name for name in type(self).model_fields if name not in StaticQuantConfig.model_fields]
        options = {name: value for name, (value, _) in self.changed(*own).items()}
        return (*super().passes, Pass("smooth", options))
