"""Quantized Hugging Face checkpoints: GPTQ, AWQ and compressed-tensors folders, read into and written from our layers."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import LayerResult
from neural_compressor.errors import ConfigError, FormatError, MissingDependencyError, WorkspaceError
from neural_compressor.formats import FORMATS, QuantizedCheckpoint, ShardWriter, new_folder
from neural_compressor.formats.json_files import read_json
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.torch.files.checkpoint import load_model, save_model, unique_state
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import find_ops, not_weight_only
from neural_compressor.torch.structure.ties import untie_stored

logger = logging.getLogger("neural_compressor")
LAYOUTS = {"compressed-tensors": "pack-quantized", "gptq": "gptq", "gptq_v2": "gptq_v2", "awq": "awq"}
CACHE = "neural_compressor_cache"


def transformers_module() -> Any:
    """The transformers package, or an error that names the extra."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "transformers is not installed; install it with: pip install 'open-neural-compressor[transformers]'"
        ) from error
    return transformers


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules made inside hold parameters without storage; buffers, which no checkpoint has, are made for real."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def empty_model(folder: Path, dtype: torch.dtype | None, kind: Any = None) -> nn.Module:
    """The model that the config.json of a folder describes, without weights; ``kind`` is the class, where that is known."""
    transformers = transformers_module()
    config = transformers.AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    names = getattr(config, "architectures", None) or []
    if kind is None:
        kind = getattr(transformers, names[0], None) if names else transformers.AutoModelForCausalLM
    if kind is None:
        raise FormatError(
            f"{folder / 'config.json'} names the architecture {names[0]!r}, which transformers does not have"
        )
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    with parameters_on_meta():
        model: nn.Module = make(config, dtype=dtype or getattr(config, "dtype", None) or torch.float32)
    return model.eval()


def load_empty_model(folder: str | Path, dtype: torch.dtype | None = None) -> nn.Module:
    """The model of a Hugging Face folder without its weights: quantized with ``model_path`` set to the folder, they are read
    when their turn comes, and a checkpoint larger than memory can be worked on."""
    return empty_model(Path(folder), dtype)


def load_checkpoint(
    folder: Path, original_model: nn.Module | None, device: str, dtype: torch.dtype | None, cache: bool = True
) -> nn.Module:
    """The model of a quantized folder on ``device``; a converted copy is kept in the folder for the next time."""
    skeleton = original_model if original_model is not None else empty_model(folder, dtype)
    kept = folder / CACHE / _identity(folder, dtype)
    if cache and kept.exists():
        try:
            return load_model(kept, skeleton).to(device)
        except FormatError as error:
            logger.warning("the converted copy %s is not used: %s", kept, error)
    model = _convert(folder, skeleton, dtype)
    if cache:
        try:
            save_model(model, kept)
        except WorkspaceError as error:
            logger.warning("the converted model is not kept for the next time: %s", error)
    return model.to(device)


def _identity(folder: Path, dtype: torch.dtype | None) -> str:
    """Changes when a file of the checkpoint does."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json"))
    facts = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    return hashlib.sha256(json.dumps([facts, str(dtype)]).encode()).hexdigest()[:16]


def _convert(folder: Path, model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    schemes = {}
    with QuantizedCheckpoint(folder) as checkpoint:
        modules = dict(model.named_modules())
        for name in checkpoint.layers:
            if name not in modules:
                raise FormatError(f"{folder} has a layer {name!r}; a {type(model).__name__} has none of that name")
            weight = checkpoint.layer(name)
            array = weight.to_quantized()
            layer = WeightOnlyLinear.from_layer(modules[name], LayerResult(array, weight.order), bias=weight.bias)
            replace_module(model, name, layer)
            schemes[name, type(modules[name]).__name__] = OpScheme(weight=array.scheme, mode="weight_only")
        others = {name: checkpoint.tensors[name] for name in checkpoint.others}
    if dtype is not None:
        others = {name: t.to(dtype) if t.is_floating_point() else t for name, t in others.items()}
    untie_stored(model, others)
    unexpected = model.load_state_dict(others, strict=False, assign=True).unexpected_keys
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()
    empty = [name for name, p in model.named_parameters() if p.is_meta]
    if empty or unexpected:
        raise FormatError(
            f"{folder} does not fill a {type(model).__name__}: missing {empty[:5]}, unexpected {unexpected[:5]}"
        )
    ops, skipped = find_ops(model)
    left = {**skipped, **not_weight_only(model, ops)}
    left = {key: why for key, why in left.items() if key not in schemes}
    model.quantization = Quantization(Plan(schemes), Structure(), left)  # type: ignore[assignment]
    return model


def write_checkpoint(model: nn.Module, folder: str | Path, layout: str = "compressed-tensors") -> None:
    """Write the model as a Hugging Face checkpoint; a layer that ``layout`` cannot hold is an error that says why."""
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}; {close_matches(layout, LAYOUTS)}")
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ConfigError(f"a {type(model).__name__} has no transformers config; save it with format='default'")
    format = FORMATS[LAYOUTS[layout]]
    layers = {n: m for n, m in model.named_modules() if isinstance(m, WeightOnlyLinear)}
    if not layers:
        raise ConfigError("the model has no weight-only layer; quantize it first")
    specs, packed = {}, {}
    for name, layer in layers.items():
        try:
            weight = layer.linear_weight()
        except FormatError as error:
            raise FormatError(f"layer {name!r} cannot be stored as {layout}: {error}") from error
        if reason := format.why_not(weight):
            raise FormatError(f"layer {name!r} cannot be stored as {layout}: {reason}")
        specs[name] = weight.spec
        packed[name] = format.compress(weight, name)
    prefixes = tuple(f"{name}." for name in layers)
    tensors, _ = unique_state(model)
    ignore = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    block = format.config(specs, ignore, complete=True)
    settings = {**config.to_dict(), "architectures": [type(model).__name__], "quantization_config": block}
    _require_no_float_model(Path(folder))
    with new_folder(folder, overwrite=True) as fresh:
        writer = ShardWriter(fresh)
        for name, tensor in tensors.items():
            if not name.startswith(prefixes):
                writer.add(name, tensor.detach().cpu().contiguous())
        for name, parts in packed.items():
            for part, array in parts.items():
                writer.add(f"{name}.{part}", array)
        writer.close()
        (fresh / "config.json").write_text(json.dumps(settings, indent=2, default=str), encoding="utf-8")
        for file, content in format.files(block).items():
            (fresh / file).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _require_no_float_model(folder: Path) -> None:
    """Refuse a folder with weights that are not quantized: they could not be had back."""
    config = folder / "config.json"
    if not any(file for kind in ("model*.safetensors", "pytorch_model*.bin") for file in folder.glob(kind)):
        return
    if (folder / "qconfig.json").exists():  # of ours, in the other format
        return
    if not config.exists() or "quantization_config" not in read_json(config):
        raise WorkspaceError(f"{folder} holds the weights of a model that is not quantized: choose another folder")
