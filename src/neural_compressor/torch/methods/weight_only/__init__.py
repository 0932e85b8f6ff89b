"""Weight-only quantization of linear layers, block by block."""
