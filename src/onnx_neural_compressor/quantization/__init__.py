"""Quantize ONNX models: static, dynamic and weight-only; convert them to fp16 and bf16."""

from neural_compressor.onnx.quantization import CalibrationMethod, QuantFormat, QuantType, convert_precision, quantize

__all__ = ["CalibrationMethod", "QuantFormat", "QuantType", "convert_precision", "quantize"]
