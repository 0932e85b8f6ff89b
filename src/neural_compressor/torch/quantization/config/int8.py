"""Integer weights and activations, static and dynamic."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import ExcludedPrecisions, one_or_more, word
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.observers import OBSERVERS
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, Pass, TensorScheme
from neural_compressor.torch.quantization.config.fields import Dtype, Flag, FoldedHadamard, rotation_passes
from neural_compressor.torch.quantization.config.fp8 import FP8Config


def _observer(value: Any) -> str:
    if isinstance(value, str) and value in OBSERVERS:
        return value
    raise ConfigError(f"got {value!r}; {close_matches(str(value), OBSERVERS)}")


Granularity = Annotated[str, one_or_more(word(("per_tensor", "per_channel", "per_block")))]
ActivationGranularity = Annotated[str, one_or_more(word(("per_tensor", "per_channel", "per_token", "per_group")))]
_GROUP = 128
"""The size of groups of activations, which are what blocks of weights are multiplied with."""
Algorithm = Annotated[str, one_or_more(_observer)]


_PREFIXES = {"w": "weight", "act": "activation"}
_FIELDS = {"dtype": "dtype", "sym": "scheme", "granularity": "granularity", "algo": "algorithm"}
"""What a field of a tensor is called in the configurations, and in schemes."""


class ActivationConfig(ComposableConfig):
    """What the configurations share that quantize weights and activations."""

    w_dtype: Dtype = "int8"
    w_sym: Flag = True
    w_granularity: Granularity = "per_channel"
    w_algo: Algorithm = "minmax"
    act_dtype: Dtype = "uint8"
    act_sym: Flag = False
    act_granularity: ActivationGranularity = "per_tensor"
    act_algo: Algorithm = "minmax"

    _mode: ClassVar[str] = "static"

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What it asks to be done to the whole model before its ops are quantized."""
        return rotation_passes(self)

    @property
    def quantizes(self) -> bool:
        """Whether weights or activations are quantized, and not left in float."""
        return not self.op_scheme().is_float

    @property
    def wanted(self) -> OpScheme:
        """How an op computes, as near as the framework comes to it."""
        scheme = self.op_scheme()
        if not scheme.is_float and scheme.activation is None:
            raise ConfigError(
                f"{type(self).__name__}.act_dtype: got {self.act_dtype!r}, and weights in {self.w_dtype!r}: for weights "
                "alone use RTNConfig or another weight-only configuration"
            )
        return scheme

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: those that are not at their default.

        Who speaks of a tensor means the data type it has by default.
        """
        changed = self.changed(*(f"{prefix}_{name}" for prefix in _PREFIXES for name in _FIELDS))
        found: dict[tuple[str, str], Any] = {}
        for given, (value, _) in changed.items():
            prefix, _, name = given.partition("_")
            said = ("sym" if value else "asym") if name == "sym" else value
            found[_PREFIXES[prefix], "dtype"] = getattr(self, f"{prefix}_dtype")
            found[_PREFIXES[prefix], _FIELDS[name]] = said
        return found

    def op_scheme(self) -> OpScheme:
        """How an op with a weight computes."""
        self.require_single()
        given = {
            tensor: {field: getattr(self, f"{prefix}_{name}") for name, field in _FIELDS.items()}
            for prefix, tensor in _PREFIXES.items()
        }
        fields = {tensor: {**each, "scheme": "sym" if each["scheme"] else "asym"} for tensor, each in given.items()}
        if self.act_granularity == "per_group":
            fields["activation"]["group_size"] = _GROUP
        weight, activation = (TensorScheme.from_dict(fields[part]) for part in ("weight", "activation"))
        if weight.is_float and activation.is_float:
            return OpScheme(weight, activation, "float")
        return OpScheme(weight, None if activation.is_float else activation, self._mode)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        for prefix in ("w", "act"):
            kind = dtype(values[f"{prefix}_dtype"])
            if not kind.is_integer:
                values = cls._with(values, {f"{prefix}_sym": True}, given, f"{prefix}_dtype {kind.name!r}")
        return super()._settled(values, given)


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
    channel first, for weights with one scale for all channels. ``learned_rounding`` rounds weights up or down so that
    outputs of layers change least, and not to nearest: for CNNs that int8 hurts, and for fewer bits. An ``act_algo`` that is
    given holds, ``"minmax"`` too; where it is not, each op has the one that the framework YAML lists first for it.

    >>> StaticQuantConfig().left_open, StaticQuantConfig(act_algo="minmax").left_open
    ((('activation', 'algorithm'),), ())
    """

    def __new__(cls, *args: Any, **values: Any) -> Any:
        """An instance, or the other configuration that ``fp8_config`` asks for."""
        return FP8Config(*args, **values) if "fp8_config" in values else super().__new__(cls)

    excluded_precisions: ExcludedPrecisions = ()
    hadamard: FoldedHadamard = False
    equalize: Flag = False
    learned_rounding: Flag = False

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What it asks to be done to the whole model before its ops are quantized."""
        equalized = (Pass("equalize"),) if self.equalize else ()
        learned = (Pass("learn_rounding"),) if self.learned_rounding else ()
        return (*super().passes, *equalized, *learned)

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
