"""ONNX model files: read, written and checked."""
