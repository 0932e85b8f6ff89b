"""Quantization of PyTorch models."""

from neural_compressor.torch.quantization import config
from neural_compressor.torch.quantization.config import *  # noqa: F403
from neural_compressor.torch.quantization.preparation import (
    convert,
    finalize_calibration,
    prepare,
    prepare_qat,
    quantize,
)
from neural_compressor.torch.quantization.saving import load, save
from neural_compressor.torch.quantization.tuning import autotune

__all__ = ["autotune", "convert", "finalize_calibration", "load", "prepare", "prepare_qat", "quantize", "save"]
__all__ += config.__all__
