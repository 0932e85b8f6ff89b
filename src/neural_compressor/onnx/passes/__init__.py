"""Changes to a whole model, before or after its ops are quantized."""
