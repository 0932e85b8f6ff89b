"""ONNX Runtime: sessions, execution providers, kernels and their speed, and the data that models run on."""
