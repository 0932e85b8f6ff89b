"""Quantize ONNX models: static, dynamic and weight-only."""

from neural_compressor.onnx.quantization import CalibrationMethod, QuantFormat, QuantType, quantize

__all__ = ["CalibrationMethod", "QuantFormat", "QuantType", "quantize"]
