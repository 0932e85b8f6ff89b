"""Save a quantized model, load it, and read and write Hugging Face checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.formats.json_files import read_json
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches
from neural_compressor.torch.checks import require_module
from neural_compressor.torch.files.checkpoint import load_model, save_model
from neural_compressor.torch.files.gguf import write_gguf_model
from neural_compressor.torch.files.huggingface import load_checkpoint
from neural_compressor.torch.files.huggingface_writer import write_checkpoint
from neural_compressor.torch.modules.kv_cache import kv_scales_of

logger = logging.getLogger("neural_compressor")
FORMATS = ("default", "huggingface", "gguf")


def save(
    model: nn.Module, checkpoint_dir: str | Path = "saved_results", format: str = "default", **kwargs: Any
) -> None:
    """Write a quantized model into a folder.

    ``format="default"`` is safetensors with a ``qconfig.json``. ``format="huggingface"`` writes a checkpoint that serving
    engines read: ``layout`` is ``"compressed-tensors"`` (the default), ``"fp8"``, ``"modelopt"``, ``"gptq"``,
    ``"gptq_v2"`` or ``"awq"``;
    ``kv_cache`` are batches on which scales for keys and values in fp8 are found, ``input_data`` those for global scales
    of NVFP4 inputs.
    ``format="gguf"`` writes a model of the Llama family as one file for llama.cpp, ``checkpoint_dir`` itself where that
    ends in ``.gguf``: ``tokenizer`` gives its vocabulary (see
    :func:`~neural_compressor.torch.files.gguf.write_gguf_model` for more).
    """
    _known(format)
    path = path_of(checkpoint_dir, "save")
    if format == "default":
        _check_options("save", format, save_model, kwargs)
        if kv_scales_of(model):
            raise ConfigError(
                "the default format has no place for the scales of a key-value cache; save with format='huggingface'"
            )
        save_model(model, path)
    elif format == "gguf":
        _check_options("save", format, write_gguf_model, kwargs)
        write_gguf_model(model, path, **kwargs)
    else:
        _check_options("save", format, write_checkpoint, kwargs)
        write_checkpoint(model, path, **kwargs)


def load(
    model_name_or_path: str | Path,
    original_model: nn.Module | None = None,
    format: str = "default",
    device: str = "cpu",
    torch_dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Read what :func:`save` wrote, or a quantized Hugging Face checkpoint (GPTQ, AWQ, fp8, compressed-tensors).

    ``original_model`` gives the architecture of the default format. ``format="huggingface"`` takes a local folder and
    builds the model with transformers; what it converts is kept beside the checkpoint for the next time.
    """
    _known(format)
    path = path_of(model_name_or_path, "load")
    device = _device(device)
    _check_options("load", format, load_model if format == "default" else load_checkpoint, kwargs)
    if original_model is not None:
        require_module(original_model, "load")
    if format == "default":
        if original_model is None:
            raise ConfigError(
                "the default format holds tensors, not code: pass original_model, the float model it was made from"
            )
        return load_model(path, original_model).to(device)
    if format == "gguf":
        raise ConfigError(
            "GGUF files are written, not read; transformers reads them: from_pretrained(dir, gguf_file=...)"
        )
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; download the checkpoint first and pass where it is")
    return load_checkpoint(path, original_model, device, torch_dtype, **kwargs)


def _known(format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(f"unknown format {format!r}; {close_matches(str(format), FORMATS)}")


def _device(device: Any) -> str:
    """The name of a device that this machine has."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ConfigError(f"load: device is {device!r}, which is none of this machine: {error}") from error
    return str(torch.device("cpu" if device is None else device))


def _check_options(function: str, format: str, writer: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that ``writer``, which has no more than those with a default, does not know."""
    parameters = signature(writer).parameters.values()
    known = [p.name for p in parameters if p.default is not Parameter.empty]
    for name in options:
        if name not in known:
            has = close_matches(name, known) if known else "it has no options"
            raise ConfigError(f"{function}() does not know {name!r} for format {format!r}; {has}")


def is_quantized_folder(path: str | Path) -> bool:
    """Whether a folder holds a quantized Hugging Face checkpoint."""
    file = Path(path) / "config.json"
    return file.exists() and "quantization_config" in read_json(file)
