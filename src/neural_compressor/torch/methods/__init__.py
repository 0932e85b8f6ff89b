"""How ops are quantized: calibrated ranges, training, weight-only algorithms."""
