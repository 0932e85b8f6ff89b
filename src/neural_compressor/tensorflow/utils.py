"""Data by the names that programs of the 3.x API import from here; see :mod:`neural_compressor.data`."""

from neural_compressor.data.datasets import Dummy as DummyDataset
from neural_compressor.data.datasets import DummyV2 as DummyDatasetV2
from neural_compressor.data.loader import DefaultDataLoader as BaseDataLoader

__all__ = ["BaseDataLoader", "DummyDataset", "DummyDatasetV2"]
