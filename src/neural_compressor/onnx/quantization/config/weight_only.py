"""What the configurations of weight-only algorithms share."""

from __future__ import annotations

from typing import Any, ClassVar

from neural_compressor.algorithms import needs_data
from neural_compressor.config.method_options import OptionTable, method_of, searched
from neural_compressor.dtypes import dtype
from neural_compressor.onnx.quantization.config.fields import (
    FLOAT,
    AccuracyLevel,
    ActDtype,
    Bits,
    Flag,
    Format,
    GroupSize,
    Names,
    OptionalNames,
    Providers,
    WeightDtype,
)
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.schemes import PER_CHANNEL, Method, PerGroup, TensorScheme

ONNX_OPTIONS: OptionTable = {
    "mse": searched,
    "actorder": "act_order",
    "correct_upstream": "upstream",
    "enable_auto_scale": "auto_scale",
    "enable_mse_search": "auto_clip",
    "layer_wise_quant": "layer_wise",
}
"""The fields whose names are not those of the options they stand for."""


class WeightOnlyConfig(OnnxConfig):
    """Weights in few bits, activations in float.

    ``weight_dtype`` is ``"int"``, whose width is ``weight_bits`` (2, 4 or 8), or ``"int4"`` and the like; ``"fp32"`` leaves
    the node as it is. ``weight_group_size`` is -1 for one scale a channel. ``quant_format`` says what becomes of a matrix
    product: ``QOperator`` a ``MatMulNBits``, ``QDQ`` a DequantizeLinear in blocks before it (opset 21).

    ``accuracy_level`` is that of ``MatMulNBits``: from 1 (inputs in fp32) to 4 (in int8, the fastest on a CPU); 0 leaves
    the choice to the toolkit, which takes what is fast. Each repeated block of the model is calibrated behind those
    quantized before it, at one pass over the data a block; ``layer_wise_quant`` does so layer by layer.

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
        granularity = PER_CHANNEL if self.weight_group_size == -1 else PerGroup(self.weight_group_size)
        return TensorScheme(dtype(f"int{self.weight_bits}"), self.weight_sym, granularity, self.name)

    @property
    def needs_calibration(self) -> bool:
        """Where the method sees data, and anything is quantized."""
        return any(each.quantizes and needs_data(each.method()) for each in self.alone().expand())

    def method(self) -> Method:
        """How the weights are found."""
        self.require_single()
        return method_of(self.name, self._values(), ONNX_OPTIONS)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        name = values["weight_dtype"]
        if name in ("int", FLOAT):
            return values
        return cls._with(values, {"weight_bits": int(name.removeprefix("int"))}, given, f"weight_dtype {name!r}")

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        if not self.quantizes:
            return {"weight_dtype": FLOAT}
        return {**values, "weight_dtype": f"int{self.weight_bits}"}
