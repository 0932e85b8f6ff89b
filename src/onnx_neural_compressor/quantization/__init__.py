"""Quantize ONNX models: static, dynamic and weight-only; convert them to fp16 and bf16."""

from neural_compressor.onnx import quantization as _quantization
from neural_compressor.onnx.quantization import *  # noqa: F403

__all__ = list(_quantization.__all__)
