"""Quantization of ONNX models for ONNX Runtime."""
