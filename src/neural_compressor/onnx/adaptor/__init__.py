"""ONNX Runtime under the contract of adaptors."""

from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor

__all__ = ["ONNXRTAdaptor"]
