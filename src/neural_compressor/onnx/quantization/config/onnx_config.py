"""The base of the configurations for ONNX models: the nodes they are about, and calibration data of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from neural_compressor.config.composable import ComposableConfig

if TYPE_CHECKING:
    from typing_extensions import Self

_READER = "calibration_data_reader"


class OnnxConfig(ComposableConfig):
    """The configuration of one algorithm for ONNX models.

    ``op_types_to_quantize`` bounds the types of node it speaks of, ``nodes_to_quantize`` the nodes (names, or regular
    expressions matched whole), ``nodes_to_exclude`` names those to leave in float. ``quant_last_matmul=False`` leaves the
    last matrix product in float, too.

    A calibration data reader is data and not a setting: copies share it, and files and dicts leave it out.
    """

    #: "static", "dynamic" or "weight_only"
    approach: ClassVar[str] = ""
    #: The types quantized where nothing says which; None stands for all that can be.
    usual_types: ClassVar[tuple[str, ...] | None] = None

    if TYPE_CHECKING:
        # Each class lists its own fields, so that their order is that of its parameters.
        op_types_to_quantize: tuple[str, ...] | None
        nodes_to_quantize: tuple[str, ...]
        nodes_to_exclude: tuple[str, ...]
        quant_last_matmul: bool

    @property
    def reader(self) -> Any:
        """The calibration data reader the configuration has of its own, or None."""
        return getattr(self, _READER, None)

    def expand(self) -> list[Self]:
        singles = super().expand()
        for single in singles:
            if single is not self and self.reader is not None:
                setattr(single, _READER, self.reader)
        return singles

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        memo[id(self.reader)] = self.reader
        return super().__deepcopy__(memo)

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in super()._values().items() if name != _READER}
