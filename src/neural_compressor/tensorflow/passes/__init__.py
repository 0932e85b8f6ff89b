"""Passes over a whole Keras graph, before its ops are quantized and after."""
