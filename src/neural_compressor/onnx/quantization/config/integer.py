"""Integer weights and activations: what static and dynamic quantization share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.quantization.config.extra_options import extra_option
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.quant_types import QuantType
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpScheme, TensorScheme


class IntegerConfig(OnnxConfig):
    """A configuration that quantizes weights and activations."""

    if TYPE_CHECKING:
        weight_type: QuantType
        per_channel: bool
        reduce_range: bool
        extra_options: dict[str, Any]
        execution_provider: str | None
        target_cpu: str

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

    def _activation_scheme(self) -> TensorScheme:
        return TensorScheme(dtype(self._activation.dtype), symmetric=False)
