"""Loaders for any framework."""

from neural_compressor.data.loader import DATALOADERS, DataLoader

__all__ = ["DATALOADERS", "DataLoader"]
