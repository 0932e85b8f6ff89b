"""Quantization of ONNX models under the import paths that existing programs use; see :mod:`neural_compressor.onnx`."""
