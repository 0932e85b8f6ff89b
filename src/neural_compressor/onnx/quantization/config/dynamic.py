"""Dynamic quantization: ranges of activations taken from each batch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from neural_compressor.config.composition import register_config
from neural_compressor.onnx.graph.sum_order import ANY
from neural_compressor.onnx.quantization.config.extra_options import DYNAMIC_OPTIONS, options_among
from neural_compressor.onnx.quantization.config.fields import Flag, Names, OptionalNames, Provider, TargetCpu, Type
from neural_compressor.onnx.quantization.config.integer import IntegerConfig
from neural_compressor.onnx.quantization.quant_types import QuantType


@register_config("onnxrt", "dynamic_quant")
class DynamicQuantConfig(IntegerConfig):
    """Weights quantized beforehand, the range of activations taken from each batch. Needs no data.

    ``target_cpu`` "any" gives the same on every x86 CPU, "vnni" uses all of int8 for those that have VNNI.

    >>> DynamicQuantConfig().op_scheme().mode
    'dynamic'
    """

    approach: ClassVar[str] = "dynamic"

    weight_type: Type = QuantType.QInt8
    op_types_to_quantize: OptionalNames = None
    nodes_to_quantize: Names = ()
    nodes_to_exclude: Names = ()
    per_channel: Flag = False
    reduce_range: Flag = False
    use_external_data_format: Flag = False
    extra_options: Annotated[dict[str, Any], PlainValidator(options_among(DYNAMIC_OPTIONS))] = Field(
        default_factory=dict
    )
    quant_last_matmul: Flag = True
    execution_provider: Provider = None
    target_cpu: TargetCpu = ANY
