"""Save a quantized model, load it, and read and write Hugging Face checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from neural_compressor.errors import ConfigError
from neural_compressor.formats.json_files import read_json
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches
from neural_compressor.torch.checks import require_module
from neural_compressor.torch.files.checkpoint import load_model, save_model, stored_format
from neural_compressor.torch.files.gguf import write_gguf_model
from neural_compressor.torch.files.huggingface import load_checkpoint
from neural_compressor.torch.files.huggingface_writer import write_checkpoint
from neural_compressor.torch.pt2e.aoti import SUFFIX, load_package, write_package
from neural_compressor.torch.pt2e.checkpoint import FORMAT as GRAPH_FORMAT
from neural_compressor.torch.pt2e.checkpoint import load_graph, save_graph
from neural_compressor.torch.pt2e.exported import exported_of

logger = logging.getLogger("neural_compressor")
FORMATS = ("default", "huggingface", "gguf", "aoti")
_OTHER_NAMES = {"vllm": "huggingface"}
_FOLDER = "saved_results"


def save(model: nn.Module, checkpoint_dir: str | Path = _FOLDER, format: str = "default", **kwargs: Any) -> None:
    """Write a quantized model into a folder.

    ``format="default"`` is safetensors with a ``qconfig.json``. ``format="huggingface"`` writes a checkpoint that serving
    engines read: ``layout`` is ``"compressed-tensors"`` (the default), ``"fp8"``, ``"modelopt"``, ``"gptq"``,
    ``"gptq_v2"`` or ``"awq"``;
    ``kv_cache`` are batches on which scales for keys and values in fp8 are found, ``input_data`` those for global scales
    of NVFP4 inputs.
    ``format="gguf"`` writes a model of the Llama family as one file for llama.cpp, ``checkpoint_dir`` itself where that
    ends in ``.gguf``: ``tokenizer`` gives its vocabulary (see
    :func:`~neural_compressor.torch.files.gguf.write_gguf_model` for more).
    An exported model is saved with its graph; ``format="aoti"`` compiles it for this machine (AOTInductor).
    ``output_dir`` is another name of ``checkpoint_dir``, and ``"vllm"`` of ``"huggingface"``.
    """
    format = _known(format)
    if "output_dir" in kwargs:
        if checkpoint_dir != _FOLDER:
            raise ConfigError("save: checkpoint_dir and output_dir say the same; give one of them")
        checkpoint_dir = kwargs.pop("output_dir")
    path = path_of(checkpoint_dir, "save")
    if format == "aoti" or (isinstance(model, GraphModule) and exported_of(model) is not None):
        _save_graph(model, path, format, kwargs)
    elif format == "default":
        _check_options("save", format, save_model, kwargs)
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

    ``original_model`` gives the architecture, and stays as it is; the default format has none itself.
    ``format="huggingface"`` takes a local folder and builds the model with transformers where none is given, in
    ``torch_dtype`` if that is said; what it converts is kept beside the checkpoint for the next time.
    An exported model needs no ``original_model``; ``format="aoti"`` gives a function that runs a compiled package.
    """
    format = _known(format)
    path = path_of(model_name_or_path, "load")
    if format == "aoti" or (format == "default" and stored_format(path) == GRAPH_FORMAT):
        _check_options("load", format, load_package, kwargs)
        if str(device) != "cpu" or torch_dtype is not None:
            raise ConfigError(
                "load: an exported model is loaded as it was saved, on the CPU; leave device and torch_dtype"
            )
        if format == "aoti":
            return load_package(path)  # type: ignore[no-any-return]
        return _saving(load_graph(path))
    device = _device(device)
    _check_options("load", format, load_model if format == "default" else load_checkpoint, kwargs)
    if original_model is not None:
        require_module(original_model, "load")
    if format == "default":
        if original_model is None:
            _require_model_in(path)
            raise ConfigError(
                "the default format holds tensors, not code: pass original_model, the float model it was made from"
            )
        if torch_dtype is not None:
            raise ConfigError(
                f"load: torch_dtype is {torch_dtype}, and the default format has tensors in the types they were saved in; "
                "leave it out, and cast what is float in the model that comes back with .to(...)"
            )
        return _saving(load_model(path, original_model).to(device))
    if format == "gguf":
        raise ConfigError(
            "GGUF files are written, not read; transformers reads them: from_pretrained(dir, gguf_file=...)"
        )
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; download the checkpoint first and pass where it is")
    return _saving(load_checkpoint(path, original_model, device, torch_dtype, **kwargs))


def _require_model_in(path: Path) -> None:
    """Say of a folder that is not there, or that holds a model in another format, that it is so."""
    if not path.exists():
        raise ConfigError(f"load: {path} does not exist")
    if path.suffix == SUFFIX or any(path.glob(f"*{SUFFIX}")):
        raise ConfigError(f"load: {path} holds a compiled package; load it with format='aoti'")


def _saving(model: nn.Module) -> nn.Module:
    """With ``model.save(dir)``, as the models have that :func:`convert` returns."""
    model.save = partial(save, model)  # type: ignore[assignment]
    return model


def _save_graph(model: Any, path: Path, format: str, options: Mapping[str, Any]) -> None:
    writers = {"default": save_graph, "aoti": write_package}
    options = {name: value for name, value in options.items() if name != "example_inputs"}  # the graph has its inputs
    if format not in writers:
        raise ConfigError(f"save: format {format!r} is for eager models; an exported one has {', '.join(writers)}")
    _check_options("save", format, writers[format], options)
    writers[format](model, path)


def _known(format: str) -> str:
    name = format.value if isinstance(format, Enum) else format
    name = _OTHER_NAMES.get(name, name) if isinstance(name, str) else name
    if name not in FORMATS:
        raise ConfigError(f"unknown format {format!r}; {close_matches(str(name), FORMATS)}")
    return name


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
            own = signature(save if function == "save" else load).parameters
            has = close_matches(name, [*(each for each in own if each != "kwargs"), *known])
            raise ConfigError(f"{function}() does not know {name!r} for format {format!r}; {has}")


def is_quantized_folder(path: str | Path) -> bool:
    """Whether a folder holds a quantized Hugging Face checkpoint."""
    file = Path(path) / "config.json"
    return file.exists() and "quantization_config" in read_json(file)
