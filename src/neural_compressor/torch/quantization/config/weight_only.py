"""Bases of the configurations of weight-only algorithms: the data type of weights, and scales that are quantized."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neural_compressor.algorithms import needs_data
from neural_compressor.algorithms.weight_qparams import has_full_range
from neural_compressor.config.method_options import OptionTable, method_of
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme, in_groups
from neural_compressor.schemes.block import is_power_of_two_scale
from neural_compressor.torch.quantization.config.fields import (
    FLOAT,
    Bits,
    Flag,
    GroupSize,
    TorchConfig,
    WeightDtype,
    dtype_of,
)

logger = logging.getLogger("neural_compressor")


def _search(value: str | None) -> dict[str, Any]:
    """The options for a search of ranges: what it is called differs between algorithms."""
    options = {"search": value and "mse", "importance": value == "importance", "clip": value is not None}
    return {**options, "auto_clip": True} if value else options


TORCH_OPTIONS: OptionTable = {
    "use_full_range": lambda value: {} if value else {"full_range": False},
    "use_auto_clip": "auto_clip",
    "hadamard": lambda value: {"hadamard": value is True},
    "range_search": _search,
    "use_auto_scale": "auto_scale",
    "correct_upstream": "upstream",
    "absorb_layer_dict": "absorb",
    "absorb_to_layer": "absorb",
    "enable_quanted_input": "quantized_input",
    "not_use_best_mse": lambda value: {"keep_best": not value},
}
"""The fields whose names are not those of the options they stand for."""


class WeightOnlyConfig(TorchConfig):
    """Weights in few bits, activations in float.

    ``dtype`` is ``"int"``, whose width is ``bits``, or the name of a data type, which then says what the bits are, and for
    the block formats the group size too. ``"fp32"`` leaves the op as it is. ``group_size`` is -1 for one scale a channel.

    The weights of a model without values (meta device) are read from the safetensors in ``model_path`` when their turn
    comes; a model with values is worked on in place. That is so whatever ``use_layer_wise`` says, which never changes the
    result.
    """

    dtype: WeightDtype = "int"
    bits: Bits = 4

    if TYPE_CHECKING:
        # Each class lists the other fields itself, so that their order is that of its parameters.
        group_size: int
        quant_lm_head: bool

    @property
    def quantizes(self) -> bool:
        """Whether weights are quantized, and not left in float."""
        return self.dtype != FLOAT

    @property
    def algorithm(self) -> str:
        """The registered algorithm that finds the weights."""
        return self.name

    @property
    def symmetric(self) -> bool:
        """Whether zero is in the middle of the grid."""
        return bool(getattr(self, "use_sym", False))

    @property
    def needs_calibration(self) -> bool:
        """Whether the method, or what is done to the model before it, sees data."""
        return any(needs_data(each.method()) or each.passes for each in self.alone().expand())

    def method(self) -> Method:
        """How the weights are found."""
        self.require_single()
        return method_of(self.algorithm, self._option_fields(), TORCH_OPTIONS)

    def _option_fields(self) -> dict[str, Any]:
        """The fields that may stand for options, less what means nothing on the grid of the weights."""
        without = () if has_full_range(self.weight_scheme()) else ("use_full_range",)
        return {name: value for name, value in self._values().items() if name not in without}

    def weight_scheme(self) -> TensorScheme:
        """How a weight (outputs, inputs) is mapped to its data type."""
        self.require_single()
        kind = dtype_of(self.dtype, self.bits)
        if not self.quantizes:
            return TensorScheme(kind)
        return TensorScheme(kind, self.symmetric, in_groups(self.group_size), self.algorithm)

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        scales, zeros = self._parameters()
        scheme = replace(self.weight_scheme(), scales=scales, zeros=zeros)
        return OpScheme(scheme, mode="weight_only", method=self.method())

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: all of them."""
        scheme = self.weight_scheme()
        size = self.group_size if isinstance(scheme.granularity, PerGroup) else -1
        sign = "sym" if scheme.symmetric else "asym"
        fields = {"dtype": scheme.dtype.name, "scheme": sign, "group_size": size, "algorithm": self.algorithm}
        return {("weight", field): value for field, value in fields.items()}

    def _beside(self, activation: TensorScheme, mode: str) -> OpScheme:
        """How an op computes whose inputs are quantized too: its scales are above zero, as kernels want them."""
        scheme, method = replace(self.weight_scheme(), algorithm="minmax"), self.method()
        if has_full_range(scheme):
            method = method.with_options(full_range=False)
        return OpScheme(replace(scheme, scales=self._parameters()[0]), activation, mode, method)

    def _parameters(self) -> tuple[TensorScheme | None, TensorScheme | None]:
        """How scales, and zero points that are no integers, are stored; None where they stay floats."""
        return None, None

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        name = values["dtype"]
        if name == FLOAT:
            return values
        kind = dtype_of(name, values["bits"])
        if name != "int" and values["bits"] != kind.bits:
            if "bits" in given:
                logger.warning(
                    "%s: dtype %r has %d bits, bits=%s is not read", cls.__name__, name, kind.bits, values["bits"]
                )
            values = {**values, "bits": kind.bits}
        follows: dict[str, Any] = {}
        if kind.block_size:
            follows["group_size"] = kind.block_size
        if not kind.is_integer and "use_sym" in values:
            follows["use_sym"] = True
        values = cls._with(values, follows, given, f"dtype {name!r}")
        if "use_full_range" not in values or (kind.is_integer and kind.signed and values["use_sym"]):
            return values
        sign = "sym" if values["use_sym"] else "asym"
        return cls._with(values, {"use_full_range": False}, given, f"{kind.name} {sign}")

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        values = super()._distinct(values)
        if not self.quantizes:
            return {"dtype": FLOAT}
        return {**values, "dtype": dtype_of(self.dtype, self.bits).name}


def has_exponent_scales(name: str, bits: int) -> bool:
    """Whether the scales of a data type are bare powers of two, of which the largest weight of a block says which."""
    scales = dtype_of(name, bits).scale_type
    return scales is not None and is_power_of_two_scale(scales)


_NOT_IN_THE_RESULT = ("use_layer_wise", "use_block_wise", "model_path", "block_size")


class DoubleQuantConfig(WeightOnlyConfig):
    """What the configurations with options for the scales share: how they are chosen, and whether they are quantized."""

    use_sym: Flag = True
    group_size: GroupSize = 32

    if TYPE_CHECKING:
        use_mse_search: bool
        use_layer_wise: bool
        model_path: str
        use_double_quant: bool
        double_quant_dtype: str
        double_quant_bits: int
        double_quant_use_sym: bool
        double_quant_group_size: int

    @property
    def range_search(self) -> str | None:
        """How scales are searched: None (they span the range), ``"mse"``, or ``"importance"`` (weighted by the data)."""
        search = getattr(self, "scale_search", "none")
        return search if search != "none" else "mse" if self.use_mse_search else None

    def _option_fields(self) -> dict[str, Any]:
        return {**super()._option_fields(), "range_search": self.range_search}

    def _parameters(self) -> tuple[TensorScheme | None, TensorScheme | None]:
        return self.double_quant_scheme(), None

    def double_quant_scheme(self) -> TensorScheme | None:
        """How the scales are quantized; None where they stay in float."""
        self.require_single()
        if not self.use_double_quant or not self.quantizes:
            return None
        kind = dtype_of(self.double_quant_dtype, self.double_quant_bits)
        return TensorScheme(kind, self.double_quant_use_sym, in_groups(self.double_quant_group_size))

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        if values["dtype"] == FLOAT:
            return values
        kind = dtype_of(values["dtype"], values["bits"])
        if kind.scale_type:  # its scales are of a small type already
            values = cls._with(values, {"use_double_quant": False}, given, kind.name)
        return cls._settled_scales(values, given) if values["use_double_quant"] else values

    @classmethod
    def _settled_scales(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        name = values["double_quant_dtype"]
        if name == FLOAT:
            raise ConfigError(
                f"{cls.__name__}.double_quant_dtype: got 'fp32', which scales have without double quantization; "
                "set use_double_quant=False"
            )
        kind = dtype_of(name, values["double_quant_bits"])
        if kind.block_size:
            raise ConfigError(
                f"{cls.__name__}.double_quant_dtype: got {name!r}, a block format with scales of its own; expected an "
                "integer, float or codebook type"
            )
        follows: dict[str, Any] = {} if name == "int" else {"double_quant_bits": kind.bits}
        if not kind.is_integer:
            follows["double_quant_use_sym"] = True
        return cls._with(values, follows, given, f"double_quant_dtype {name!r}")

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        values = super()._distinct(values)
        if not self.quantizes:
            return values
        ignored = () if self.use_double_quant else tuple(name for name in values if name.startswith("double_quant_"))
        ignored = (*ignored, *_NOT_IN_THE_RESULT, "use_mse_search", "scale_search")
        rest = {name: value for name, value in values.items() if name not in ignored}
        return {**rest, "range_search": self.range_search}
