"""Low-bit kernels of torch and ONNX Runtime: what each computes, where it runs, which is chosen."""
