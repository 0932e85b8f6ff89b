"""Configurations of weight-only quantization: RTN, GPTQ, AWQ and HQQ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from neural_compressor.algorithms import AWQOptions, GPTQOptions, RTNOptions, needs_data
from neural_compressor.config.composition import register_config
from neural_compressor.config.method_options import RECIPE_OPTIONS, OptionTable, method_of
from neural_compressor.config.validators import one_or_more, only, positive
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.fields import (
    FLOAT,
    AccuracyLevel,
    ActDtype,
    Bits,
    Count,
    Flag,
    Format,
    Fraction,
    GroupSize,
    Names,
    OnnxConfig,
    OptionalNames,
    Providers,
    Reader,
    WeightDtype,
)
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.schemes import Method, OpScheme, TensorScheme, in_groups

_GPTQ, _AWQ = GPTQOptions(), AWQOptions()
ONNX_OPTIONS: OptionTable = {
    **RECIPE_OPTIONS,
    "layer_wise_quant": "layer_wise",
    "integer_zero": lambda value: {} if value else {"integer_zero": False},
}
"""The fields whose names are not those of the options they stand for."""


class WeightOnlyConfig(OnnxConfig):
    """Weights in few bits, activations in float.

    ``weight_dtype`` is ``"int"``, whose width is ``weight_bits`` (1 to 8; there are kernels for 2, 4 and 8), or the name of
    a data type, which then says what the bits are, and for the block formats the group size too. What is no integer is
    simulated: stored in few bits, and computed with in float. ``"fp32"`` leaves the node as it is. ``weight_group_size``
    is -1 for one scale a channel. ``quant_format`` says what becomes of a matrix
    product: ``QOperator`` a ``MatMulNBits``, ``QDQ`` a DequantizeLinear in blocks before it (opset 21).

    ``accuracy_level`` is that of ``MatMulNBits``: from 1 (inputs in fp32) to 4 (in int8, the fastest on a CPU); 0 leaves
    the choice to the toolkit, which takes what is fast, and ``"runtime"`` to the runtime. Each repeated block of the model
    is calibrated behind those quantized before it, at one pass over the data a block; ``layer_wise_quant`` does so layer by
    layer.

    Matrix products and Gemm are quantized; tables that Gather reads where ``op_types_to_quantize`` or a rule names them.
    """

    approach: ClassVar[str] = "weight_only"
    usual_types: ClassVar[tuple[str, ...] | None] = ("MatMul", "Gemm")

    weight_dtype: WeightDtype = "int"
    weight_bits: Bits = 4
    weight_group_size: GroupSize = 32
    weight_sym: Flag = True
    act_dtype: ActDtype = FLOAT
    accuracy_level: AccuracyLevel = 0
    providers: Providers = ("CPUExecutionProvider",)
    layer_wise_quant: Flag = False
    quant_last_matmul: Flag = True
    nodes_to_exclude: Names = ()
    nodes_to_quantize: Names = ()
    op_types_to_quantize: OptionalNames = None
    quant_format: Format = QuantFormat.QOperator

    @property
    def quantizes(self) -> bool:
        """Whether weights are quantized, and not left in float."""
        return self.weight_dtype != FLOAT

    def weight_scheme(self) -> TensorScheme:
        """How a weight (outputs, inputs) is mapped to its data type."""
        self.require_single()
        if not self.quantizes:
            return TensorScheme(dtype(FLOAT))
        return TensorScheme(self._dtype, self.weight_sym, in_groups(self.weight_group_size), self.name)

    @property
    def _dtype(self) -> DType:
        return dtype(f"int{self.weight_bits}" if self.weight_dtype == "int" else self.weight_dtype)

    @property
    def needs_calibration(self) -> bool:
        """Where the method sees data, and anything is quantized."""
        return any(each.quantizes and needs_data(each.method()) for each in self.alone().expand())

    def method(self) -> Method:
        """How the weights are found."""
        self.require_single()
        return method_of(self.name, self._values(), ONNX_OPTIONS)

    def op_scheme(self, names: Collection[str] = ()) -> OpScheme:
        """How a node with that name, or whose weight has one of ``names``, computes."""
        return OpScheme(self.weight_scheme(), mode="weight_only", method=self.method())

    def said(self) -> dict[tuple[str, str], Any]:
        """What of the scheme the configuration says itself, and not by default."""
        usual = type(self).model_fields
        scheme = "sym" if self.weight_sym else "asym"
        kind, size = ("dtype", self._dtype.name), ("group_size", self.weight_group_size)
        found = {"weight_dtype": kind, "weight_bits": kind, "weight_sym": ("scheme", scheme)}
        values: dict[str, tuple[str, Any]] = {**found, "weight_group_size": size}
        own = {
            ("weight", field): v for name, (field, v) in values.items() if getattr(self, name) != usual[name].default
        }
        return {("weight", "algorithm"): self.name, **own}

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        name = values["weight_dtype"]
        if name in ("int", FLOAT):
            return values
        kind = dtype(name)
        follows: dict[str, Any] = {"weight_bits": kind.bits}
        if kind.block_size:
            follows["weight_group_size"] = kind.block_size
        if not kind.is_integer:
            follows["weight_sym"] = True
        return cls._with(values, follows, given, f"weight_dtype {name!r}")

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        if not self.quantizes:
            return {"weight_dtype": FLOAT}
        return {**values, "weight_dtype": self._dtype.name}


def _ratios(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"got {value!r}, expected a dict of ratios by the name of a weight or a node")
    return {name: positive(ratio) for name, ratio in value.items()}


@register_config("onnxrt", "rtn")
class RTNConfig(WeightOnlyConfig):
    """Round to nearest: each weight goes to the closest value of its grid. Needs no data.

    ``ratios`` shrinks the range of some weights: ``{"name of a weight or node": 0.9}``. ``mse`` searches the range with
    the least error for each group instead.

    >>> config = RTNConfig(weight_bits=[4, 8]).set_local("head", RTNConfig(weight_dtype="fp32"))
    >>> [each.weight_scheme().dtype.name for each in config.expand()]
    ['int4', 'int8']
    """

    ratios: Annotated[dict[str, float], PlainValidator(_ratios)] = Field(default_factory=dict)
    mse: Flag = RTNOptions().search is not None

    def op_scheme(self, names: Collection[str] = ()) -> OpScheme:
        scheme, ratios = super().op_scheme(names), [self.ratios[name] for name in names if name in self.ratios]
        return replace(scheme, method=self.method().with_options(ratio=ratios[-1])) if ratios else scheme

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["mse"] and values["ratios"]:
            raise ConfigError(f"{cls.__name__}: ratios and mse both choose the range of a weight; leave one out")
        return super()._settled(values, given)


@register_config("onnxrt", "gptq")
class GPTQConfig(WeightOnlyConfig):
    """GPTQ: weights not yet rounded make up for the error of those that are. Needs data.

    ``actorder`` takes the inputs with the largest activations first. ``mse`` looks for the ranges with the least loss,
    without which a language model may gain nothing over rounding to nearest. ``correct_upstream`` makes a layer aim at the
    outputs of the float model, not at its own on inputs that already carry an error. ``percdamp`` steadies the
    statistics, ``block_size`` changes the speed only.
    """

    percdamp: Fraction = _GPTQ.percdamp
    block_size: Count = _GPTQ.block_size
    actorder: Flag = _GPTQ.act_order
    mse: Flag = _GPTQ.search is not None
    perchannel: Annotated[bool, one_or_more(only(True, "the kernels keep scales for each channel and group"))] = True
    correct_upstream: Flag = _GPTQ.upstream
    calibration_data_reader: Reader = None


@register_config("onnxrt", "awq")
class AWQConfig(WeightOnlyConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and scaled down before they come in. Needs
    data.

    ``enable_auto_scale`` searches the scales, ``enable_mse_search`` then the ranges.
    """

    enable_auto_scale: Flag = _AWQ.auto_scale
    enable_mse_search: Flag = _AWQ.auto_clip
    calibration_data_reader: Reader = None


@register_config("onnxrt", "hqq")
class HQQConfig(WeightOnlyConfig):
    """HQQ: zero points are fitted so that a few weights far off cost little. Needs no data; always asymmetric.

    ``integer_zero=False`` keeps what zero points have between integers as one more float a group, added by a small product
    of its own: closer to the float model, half a bit a weight larger. A group size of 32 costs as much and gains more.
    """

    weight_group_size: GroupSize = 64
    integer_zero: Flag = True
    weight_sym: Annotated[bool, one_or_more(only(False, "HQQ fits zero points"))] = False

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        name = values["weight_dtype"]
        if name not in ("int", FLOAT) and not dtype(name).is_integer:
            raise ConfigError(
                f"{cls.__name__}.weight_dtype: got {name!r}, expected an integer type: HQQ fits zero points"
            )
        return super()._settled(values, given)
