"""Names that programs written for the 3.x API import from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neural_compressor.adaptor.pytorch import get_torch_version
from neural_compressor.torch.accelerator import Accelerator, auto_detect_accelerator
from neural_compressor.torch.utils.utility import (
    LoadFormat,
    ProcessorType,
    SaveLoadFormat,
    forward_wrapper,
    get_double_quant_config_dict,
    get_model_device,
    get_model_info,
    get_used_cpu_mem_MB,
    get_used_hpu_mem_MB,
    is_hpex_available,
    is_hpu_available,
    is_ipex_available,
    logger,
    move_input_device,
    move_input_to_device,
)

if TYPE_CHECKING:
    accelerator: Accelerator

__all__ = [
    "Accelerator",
    "LoadFormat",
    "ProcessorType",
    "SaveLoadFormat",
    "accelerator",
    "auto_detect_accelerator",
    "forward_wrapper",
    "get_accelerator",
    "get_double_quant_config_dict",
    "get_model_device",
    "get_model_info",
    "get_torch_version",
    "get_used_cpu_mem_MB",
    "get_used_hpu_mem_MB",
    "is_hpex_available",
    "is_hpu_available",
    "is_ipex_available",
    "logger",
    "move_input_device",
    "move_input_to_device",
]

get_accelerator = auto_detect_accelerator


def __getattr__(name: str) -> object:
    if name == "accelerator":  # looked for when it is asked for: INC_TARGET_DEVICE may be set after the import
        return auto_detect_accelerator()
    if name == "register_algo":
        raise ImportError(
            "register_algo is not here: an algorithm of one's own is registered with "
            "neural_compressor.algorithms.register_algorithm, see docs/algorithm_options.md"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
