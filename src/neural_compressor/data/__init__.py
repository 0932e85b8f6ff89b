"""Data for calibration and evaluation by the names of the 2.x API: loaders, data sets on this machine, transforms of images.

Any loader that can be gone over again serves as well; nothing is downloaded.
"""

from neural_compressor.data.datasets import Datasets, Dummy, DummyV2, ImageFolder, ImagenetRaw
from neural_compressor.data.loader import DATALOADERS, DataLoader, DefaultDataLoader
from neural_compressor.data.transforms import (
    TRANSFORMS,
    CastTransform,
    CenterCropTransform,
    ComposeTransform,
    CropResizeTransform,
    CropToBoundingBox,
    NormalizeTransform,
    RescaleTransform,
    ResizeTransform,
    TransposeTransform,
)

__all__ = [
    "DATALOADERS",
    "TRANSFORMS",
    "CastTransform",
    "CenterCropTransform",
    "ComposeTransform",
    "CropResizeTransform",
    "CropToBoundingBox",
    "DataLoader",
    "Datasets",
    "DefaultDataLoader",
    "Dummy",
    "DummyV2",
    "ImageFolder",
    "ImagenetRaw",
    "NormalizeTransform",
    "RescaleTransform",
    "ResizeTransform",
    "TransposeTransform",
]
