"""Batches for PyTorch, as tensors."""

from __future__ import annotations

from typing import Any

from neural_compressor.data.loader import DataLoader

__all__ = ["PyTorchDataLoader"]


class PyTorchDataLoader(DataLoader):
    """:class:`DataLoader` for PyTorch."""

    def __init__(self, dataset: Any, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__("pytorch", dataset, batch_size, **kwargs)
