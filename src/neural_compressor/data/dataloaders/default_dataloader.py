"""Batches as NumPy arrays."""

from neural_compressor.data.loader import DefaultDataLoader

__all__ = ["DefaultDataLoader"]
