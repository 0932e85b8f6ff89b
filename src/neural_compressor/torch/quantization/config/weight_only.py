"""What the configurations of weight-only algorithms share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.torch.quantization.config.fields import FLOAT, dtype_of


class WeightOnlyConfig(ComposableConfig):
    """Weights in few bits, activations in float.

    ``dtype`` is ``"int"``, whose width is ``bits``, or the name of a data type, which then says what the bits are, and for
    the block formats the group size too. ``"fp32"`` leaves the op as it is. ``group_size`` is -1 for one scale a channel.

    The weights of a model without values (meta device) are read from the safetensors in ``model_path`` when their turn
    comes; a model with values is worked on in place. That is so whatever ``use_layer_wise`` says, which never changes the
    result.
    """

    if TYPE_CHECKING:
        # Each class lists its own fields, so that their order is that of its parameters.
        dtype: str
        bits: int
        group_size: int
        quant_lm_head: bool

    @property
    def quantizes(self) -> bool:
        """Whether weights are quantized, and not left in float."""
        return self.dtype != FLOAT

    @property
    def symmetric(self) -> bool:
        """Whether zero is in the middle of the grid."""
        return bool(getattr(self, "use_sym", False))

    def weight_scheme(self) -> TensorScheme:
        """How a weight (outputs, inputs) is mapped to its data type."""
        self.require_single()
        kind = dtype_of(self.dtype, self.bits)
        if not self.quantizes:
            return TensorScheme(kind)
        granularity = PER_CHANNEL if self.group_size == -1 else PerGroup(self.group_size)
        return TensorScheme(kind, self.symmetric, granularity, self.name)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        name = values["dtype"]
        if name == FLOAT:
            return values
        kind = dtype_of(name, values["bits"])
        follows: dict[str, Any] = {} if name == "int" else {"bits": kind.bits}
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
