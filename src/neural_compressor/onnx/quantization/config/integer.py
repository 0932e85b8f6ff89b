"""Configurations of quantized weights and activations: static, SmoothQuant and dynamic."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more, smoothing_alpha
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.graph.sum_order import ANY
from neural_compressor.onnx.quantization.config.fields import (
    STATIC_OPTIONS,
    Count,
    Flag,
    Format,
    Method,
    Names,
    OnnxConfig,
    OptionalNames,
    Provider,
    Reader,
    TargetCpu,
    Type,
    auto_alpha,
    dynamic_options,
    extra_option,
    options_among,
    smoothed_types,
)
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpScheme, Pass, TensorScheme


class IntegerConfig(OnnxConfig):
    """A configuration that quantizes weights and activations."""

    weight_type: Type = QuantType.QInt8
    op_types_to_quantize: OptionalNames = None
    nodes_to_quantize: Names = ()
    nodes_to_exclude: Names = ()
    per_channel: Flag = False
    reduce_range: Flag = False
    use_external_data_format: Flag = False
    extra_options: Annotated[dict[str, Any], PlainValidator(options_among())] = Field(default_factory=dict)

    _activation: ClassVar[QuantType] = QuantType.QUInt8

    def option(self, name: str) -> Any:
        """An extra option, or its default."""
        return extra_option(self.extra_options, name)

    def op_scheme(self, has_weight: bool = True) -> OpScheme:
        """How a node computes. One scale a channel is for nodes with a weight; which axis that is the node's type says."""
        self.require_single()
        symmetric = self.option("WeightSymmetric")
        weight = TensorScheme(
            dtype(self.weight_type.dtype),
            self.weight_type.signed if symmetric is None else symmetric,
            PER_CHANNEL if self.per_channel else PER_TENSOR,
            reduce_range=self.reduce_range,
        )
        return OpScheme(weight if has_weight else None, self._activation_scheme(), self.approach)

    def said(self) -> dict[tuple[str, str], Any]:
        """What of the scheme the configuration says itself, and not by default."""
        found: dict[tuple[str, str], Any] = {}
        fields = type(self).model_fields
        for tensor in ("weight", "activation"):
            name, symmetry = f"{tensor}_type", f"{tensor.capitalize()}Symmetric"
            if name in fields and getattr(self, name) != fields[name].default:
                found[tensor, "dtype"] = getattr(self, name).dtype
            if symmetry in self.extra_options:
                found[tensor, "scheme"] = "sym" if self.option(symmetry) else "asym"
        return found

    def _activation_scheme(self) -> TensorScheme:
        return TensorScheme(dtype(self._activation.dtype), symmetric=False)


class StaticParameters(OnnxConfig):
    """The parameters of static quantization that come before those of all integer configurations."""

    calibration_data_reader: Reader = None
    calibrate_method: Method = CalibrationMethod.MinMax
    quant_format: Format = QuantFormat.QOperator
    activation_type: Type = QuantType.QUInt8


@register_config("onnxrt", "static_quant")
class StaticQuantConfig(IntegerConfig, StaticParameters):
    """Weights and activations quantized with ranges from calibration data.

    The default pair, unsigned activations with signed weights, is what x86 machines are fast at. ``target_cpu`` "any" gives
    the same on each of them, "vnni" uses all of int8 for CPUs that have VNNI. Weights of over a gibibyte go to a file beside
    the model, whatever ``use_external_data_format`` says.

    >>> StaticQuantConfig(calibrate_method="kl", per_channel=True).op_scheme().activation.algorithm
    'kl'
    """

    approach: ClassVar[str] = "static"

    calibration_sampling_size: Count = 100
    quant_last_matmul: Flag = True
    execution_provider: Provider = None
    target_cpu: TargetCpu = ANY

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True

    @property
    def smoothing(self) -> Pass | None:
        """What is done to outliers first, if anything."""
        if not self.option("SmoothQuant"):
            return None
        named = {"op_types": "OpTypes", "calib_iter": "CalibIter", "scales_per_op": "ScalesPerOp"}
        named |= {"alpha": "Alpha", "folding": "Folding"}
        options = {name: self.option(f"SmoothQuant{spelled}") for name, spelled in named.items()}
        auto = self.option("AutoAlphaArgs")
        if auto and options["alpha"] != "auto":
            raise ConfigError(
                f"{type(self).__name__}.extra_options: option AutoAlphaArgs says what SmoothQuantAlpha='auto' chooses "
                f"from, and that is {options['alpha']!r}; leave one out"
            )
        return Pass("smooth", {**options, **auto, "op_types": options["op_types"] or LINEAR_TYPES})

    def _activation_scheme(self) -> TensorScheme:
        symmetric = self.option("ActivationSymmetric")
        return TensorScheme(dtype(self.activation_type.dtype), symmetric, algorithm=self.calibrate_method.observer)


class SmoothParameters(OnnxConfig):
    """The parameters SmoothQuant has beside those of static quantization; they come first."""

    alpha: Annotated[float | str, one_or_more(smoothing_alpha)] = 0.5
    folding: Flag = True
    op_types: Annotated[tuple[str, ...], PlainValidator(smoothed_types)] = LINEAR_TYPES
    calib_iter: Count = 100
    scales_per_op: Flag = True
    auto_alpha_args: Annotated[dict[str, Any], PlainValidator(auto_alpha)] = Field(default_factory=dict)


@register_config("onnxrt", "smooth_quant")
class SmoothQuantConfig(StaticQuantConfig, SmoothParameters):
    """Static quantization after moving the outliers of activations into the weights.

    ``alpha`` says how far they move: from 0 to 1, or ``"auto"`` to choose for each node. A list of them is
    tried by autotune one after the other; where a model is quantized once, nodes get the one with the least loss.
    ``folding`` lets the node before take up the scales, ``scales_per_op`` gives nodes that share an input scales of their
    own, ``calib_iter`` is how many samples are looked at. ``auto_alpha_args`` is what "auto" chooses from, as in
    ``{"alpha_min": 0.3, "alpha_max": 0.7, "alpha_step": 0.1}``.
    """

    extra_options: Annotated[dict[str, Any], PlainValidator(options_among(STATIC_OPTIONS))] = Field(
        default_factory=dict
    )

    @property
    def smoothing(self) -> Pass:
        """What is done to outliers."""
        names = (name for name in SmoothParameters.params_list if name not in OnnxConfig.params_list)
        options = {name: getattr(self, name) for name in names}
        auto = options.pop("auto_alpha_args")
        return Pass("smooth", {**options, **auto})

    def require_single(self) -> None:
        """A list of ``alpha`` is no space where one model is made: the best is found without an evaluation."""
        if set(self.spans) - {"alpha"}:
            super().require_single()

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if not values["auto_alpha_args"] or values["alpha"] == "auto":
            return values
        if "auto_alpha_args" in given:
            raise ConfigError(
                f"{cls.__name__}.auto_alpha_args says what alpha='auto' chooses from, and alpha is {values['alpha']!r}; "
                "leave one out"
            )
        return {**values, "auto_alpha_args": {}}


@register_config("onnxrt", "dynamic_quant")
class DynamicQuantConfig(IntegerConfig):
    """Weights quantized beforehand, the range of activations taken from each batch. Needs no data.

    ``target_cpu`` "any" gives the same on every x86 CPU, "vnni" uses all of int8 for those that have VNNI.

    >>> DynamicQuantConfig().op_scheme().mode
    'dynamic'
    """

    approach: ClassVar[str] = "dynamic"

    extra_options: Annotated[dict[str, Any], PlainValidator(dynamic_options)] = Field(default_factory=dict)
    quant_last_matmul: Flag = True
    execution_provider: Provider = None
    target_cpu: TargetCpu = ANY
