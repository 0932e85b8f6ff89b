"""Static quantization: ranges of activations known beforehand, from calibration data."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from neural_compressor.config.composition import register_config
from neural_compressor.dtypes import dtype
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.graph.sum_order import ANY
from neural_compressor.onnx.quantization.config.extra_options import options_among
from neural_compressor.onnx.quantization.config.fields import (
    Count,
    Flag,
    Format,
    Method,
    Names,
    OptionalNames,
    Provider,
    Reader,
    TargetCpu,
    Type,
)
from neural_compressor.onnx.quantization.config.integer import IntegerConfig
from neural_compressor.onnx.quantization.config.smoothing import Smoothing
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType
from neural_compressor.schemes import TensorScheme


@register_config("onnxrt", "static_quant")
class StaticQuantConfig(IntegerConfig):
    """Weights and activations quantized with ranges from calibration data.

    The default pair, unsigned activations with signed weights, is what x86 machines are fast at. ``target_cpu`` "any" gives
    the same on each of them, "vnni" uses all of int8 for CPUs that have VNNI. Weights of over a gibibyte go to a file beside
    the model, whatever ``use_external_data_format`` says.

    >>> StaticQuantConfig(calibrate_method="kl", per_channel=True).op_scheme().activation.algorithm
    'kl'
    """

    approach: ClassVar[str] = "static"

    calibration_data_reader: Reader = None
    calibrate_method: Method = CalibrationMethod.MinMax
    quant_format: Format = QuantFormat.QOperator
    activation_type: Type = QuantType.QUInt8
    weight_type: Type = QuantType.QInt8
    op_types_to_quantize: OptionalNames = None
    nodes_to_quantize: Names = ()
    nodes_to_exclude: Names = ()
    per_channel: Flag = False
    reduce_range: Flag = False
    use_external_data_format: Flag = False
    extra_options: Annotated[dict[str, Any], PlainValidator(options_among())] = Field(default_factory=dict)
    calibration_sampling_size: Count = 100
    quant_last_matmul: Flag = True
    execution_provider: Provider = None
    target_cpu: TargetCpu = ANY

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True

    @property
    def smoothing(self) -> Smoothing | None:
        """What is done to outliers first, if anything."""
        if not self.option("SmoothQuant"):
            return None
        alpha = self.option("SmoothQuantAlpha")
        return Smoothing(
            alpha=tuple(alpha) if isinstance(alpha, list) else alpha,
            folding=self.option("SmoothQuantFolding"),
            op_types=tuple(self.option("SmoothQuantOpTypes") or LINEAR_TYPES),
            calib_iter=self.option("SmoothQuantCalibIter"),
            scales_per_op=self.option("SmoothQuantScalesPerOp"),
        )

    def _activation_scheme(self) -> TensorScheme:
        symmetric = self.option("ActivationSymmetric")
        return TensorScheme(dtype(self.activation_type.dtype), symmetric, algorithm=self.calibrate_method.observer)
