"""Functions on models and batches that programs written for the 3.x API import from here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.accelerator import Accelerator
from neural_compressor.torch.batches import feed
from neural_compressor.torch.quantization.config.defaults import get_default_double_quant_config
from neural_compressor.tuning.memory import resident_bytes

logger = logging.getLogger("neural_compressor")

__all__ = [
    "LoadFormat",
    "ProcessorType",
    "SaveLoadFormat",
    "forward_wrapper",
    "get_double_quant_config_dict",
    "get_model_device",
    "get_model_info",
    "get_used_cpu_mem_MB",
    "get_used_hpu_mem_MB",
    "is_hpex_available",
    "is_hpu_available",
    "is_ipex_available",
    "logger",
    "move_input_device",
    "move_input_to_device",
]


class SaveLoadFormat(str, Enum):
    """Formats of ``save`` and ``load``, which take their names too."""

    DEFAULT = "default"
    HUGGINGFACE = "huggingface"
    VLLM = "vllm"


LoadFormat = SaveLoadFormat


class ProcessorType(str, Enum):
    """Kinds of processor that defaults are asked for by; these take the names too."""

    Client = "client"
    Server = "server"


def is_ipex_available() -> bool:
    """Whether Intel Extension for PyTorch is installed. It is not used here."""
    return find_spec("intel_extension_for_pytorch") is not None


def is_hpu_available() -> bool:
    """Whether the machine has an HPU that torch can use."""
    return Accelerator("hpu").is_available()


is_hpex_available = is_hpu_available


def get_model_device(model: nn.Module) -> str:
    """The kind of device that the first parameter of a model is on."""
    return next((parameter.device.type for parameter in model.parameters()), "cpu")


def forward_wrapper(model: nn.Module, input: Any) -> Any:
    """Call ``model`` with the inputs of a batch: a tensor, a tuple of arguments, or a mapping of them by name."""
    return feed(model, input)


def move_input_device(input: Any, device: Any = "cpu") -> Any:
    """The tensors in nested tuples, lists and mappings on another device; all else as it is.

    >>> move_input_device({"x": [torch.zeros(1)]}, "meta")["x"][0].device.type
    'meta'
    """
    if isinstance(input, Mapping):
        return {name: move_input_device(value, device) for name, value in input.items()}
    if isinstance(input, tuple | list):
        return type(input)([move_input_device(value, device) for value in input])
    return input.to(device) if isinstance(input, torch.Tensor) else input


move_input_to_device = move_input_device


def get_model_info(model: nn.Module, white_module_list: Sequence[type[nn.Module]]) -> list[tuple[str, str]]:
    """Name and class name of the modules that are of one of these classes."""
    kinds = tuple(white_module_list)
    return [(name, type(module).__name__) for name, module in model.named_modules() if isinstance(module, kinds)]


def get_double_quant_config_dict(double_quant_type: str = "BNB_NF4") -> dict[str, Any]:
    """The parameters that lay scales out as ``"BNB_NF4"`` or ``"GGML_TYPE_Q4_K"``.

    >>> get_double_quant_config_dict()["dtype"]
    'nf4'
    """
    return get_default_double_quant_config(double_quant_type).to_diff_dict()


def get_used_cpu_mem_MB() -> float:  # noqa: N802  the name existing programs call
    """The memory that the process holds, in MiB."""
    return resident_bytes() / 2**20


def get_used_hpu_mem_MB() -> float:  # noqa: N802  the name existing programs call
    """The memory of an HPU that is in use, in MiB."""
    if not is_hpu_available():
        raise ConfigError("get_used_hpu_mem_MB: this machine has no HPU; get_used_cpu_mem_MB is for the process")
    return float(torch.hpu.memory_allocated()) / 2**20  # type: ignore[attr-defined]
