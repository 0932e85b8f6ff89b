"""Static quantization: ranges from data, integers wherever the runtime has kernels for them."""
