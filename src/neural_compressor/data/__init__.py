"""Data for calibration and evaluation by the names of the 2.x API: loaders, data sets on this machine, transforms of images.

Any loader that can be gone over again serves as well; nothing is downloaded.
"""

from neural_compressor.data.datasets import Datasets, Dummy, ImageFolder
from neural_compressor.data.loader import DataLoader, DefaultDataLoader
from neural_compressor.data.transforms import (
    CastTransform,
    CenterCropTransform,
    ComposeTransform,
    NormalizeTransform,
    RescaleTransform,
    TransposeTransform,
)

__all__ = [
    "CastTransform",
    "CenterCropTransform",
    "ComposeTransform",
    "DataLoader",
    "Datasets",
    "DefaultDataLoader",
    "Dummy",
    "ImageFolder",
    "NormalizeTransform",
    "RescaleTransform",
    "TransposeTransform",
]
