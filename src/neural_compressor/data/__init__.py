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

_RECORDS = (
    "BilinearImagenetTransform",
    "COCORecordDataset",
    "LabelBalanceCOCORecordFilter",
    "LabelShift",
    "ParseDecodeCocoTransform",
    "Postprocess",
    "TFSquadV1ModelZooPostTransform",
    "TFSquadV1PostTransform",
    "TensorflowImageRecord",
    "TensorflowResizeCropImagenetTransform",
    "TensorflowResizeWithRatio",
    "TensorflowShiftRescale",
)


def __getattr__(name: str) -> object:
    if name in _RECORDS:
        raise ImportError(
            f"{name} is not here: files of records, and what is done to their samples, are read by the program. Anything "
            "that gives batches (input, label) calibrates and evaluates, a tf.data.Dataset too"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
