"""Quantized Keras models on disk."""
