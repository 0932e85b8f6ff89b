"""Scales that are themselves quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.torch.quantization.config.fields import FLOAT, dtype_of
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig

_NOT_IN_THE_RESULT = ("use_layer_wise", "use_block_wise", "model_path", "block_size")


class DoubleQuantConfig(WeightOnlyConfig):
    """What the configurations with options for the scales share: how they are chosen, and whether they are quantized."""

    if TYPE_CHECKING:
        use_sym: bool
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

    def double_quant_scheme(self) -> TensorScheme | None:
        """How the scales are quantized; None where they stay in float."""
        self.require_single()
        if not self.use_double_quant or not self.quantizes:
            return None
        size = self.double_quant_group_size
        kind = dtype_of(self.double_quant_dtype, self.double_quant_bits)
        return TensorScheme(kind, self.double_quant_use_sym, PER_CHANNEL if size == -1 else PerGroup(size))

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
