"""Names that programs written for the 3.x API import from here."""

from __future__ import annotations

import logging

from torch import nn

from neural_compressor.adaptor.pytorch import get_torch_version
from neural_compressor.torch.accelerator import Accelerator, auto_detect_accelerator

__all__ = [
    "Accelerator",
    "auto_detect_accelerator",
    "get_accelerator",
    "get_model_device",
    "get_torch_version",
    "is_hpex_available",
    "is_hpu_available",
    "logger",
]

logger = logging.getLogger("neural_compressor")
get_accelerator = auto_detect_accelerator


def is_hpu_available() -> bool:
    """Whether the machine has an HPU that torch can use."""
    return Accelerator("hpu").is_available()


is_hpex_available = is_hpu_available


def get_model_device(model: nn.Module) -> str:
    """The kind of device that the first parameter of a model is on."""
    return next((parameter.device.type for parameter in model.parameters()), "cpu")
