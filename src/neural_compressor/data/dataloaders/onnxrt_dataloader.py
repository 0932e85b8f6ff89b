"""Batches for ONNX Runtime, as NumPy arrays."""

from neural_compressor.data.loader import DefaultDataLoader

ONNXRTDataLoader = DefaultDataLoader

__all__ = ["DefaultDataLoader", "ONNXRTDataLoader"]
