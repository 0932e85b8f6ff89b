"""Loaders for any framework."""

from neural_compressor.data.loader import DataLoader

__all__ = ["DataLoader"]
