"""Quantization of PyTorch models."""

from neural_compressor.torch.quantization import config

# Modules of the names of these functions are loaded here, once, and the names then given to the functions: a later import of
# such a module finds it loaded and leaves the names as they are.
from neural_compressor.torch.quantization.autotune import autotune
from neural_compressor.torch.quantization.config import *  # noqa: F403
from neural_compressor.torch.quantization.quantize import (
    convert,
    finalize_calibration,
    prepare,
    prepare_qat,
    quantize,
)
from neural_compressor.torch.quantization.save_load_entry import load, save

__all__ = ["autotune", "convert", "finalize_calibration", "load", "prepare", "prepare_qat", "quantize", "save"]
__all__ += config.__all__
