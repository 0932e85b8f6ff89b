"""Quantized Hugging Face checkpoints: GPTQ, AWQ, fp8 and compressed-tensors folders, read and written."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import ConfigError, FormatError, MissingDependencyError, QuantizationError, WorkspaceError
from neural_compressor.formats import FORMATS, LinearSpec, QuantizedCheckpoint, new_folder
from neural_compressor.formats.base import Spec
from neural_compressor.formats.json_files import read_json
from neural_compressor.formats.kv_cache import kv_cache_scheme
from neural_compressor.formats.safetensors_writer import shards_in
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.files.checkpoint import load_model, save_model, unique_state
from neural_compressor.torch.files.checkpoint_layers import checkpoint_layer, layers_of_one_input, module_of
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.embedding import QuantEmbedding
from neural_compressor.torch.modules.half import HalfModule
from neural_compressor.torch.modules.kv_cache import attach_kv_scales, kv_scales_of, observed_kv_scales
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import find_ops, not_weight_only, output_head
from neural_compressor.torch.structure.ties import untie_stored

logger = logging.getLogger("neural_compressor")
LAYOUTS = {"compressed-tensors": "mixed-precision", "fp8": "fp8", "gptq": "gptq", "gptq_v2": "gptq_v2", "awq": "awq"}
_FOR_ENGINES = ("compressed-tensors", "fp8")
"""Layouts whose readers multiply layers that share an input as one matrix."""
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
    with QuantizedCheckpoint(folder) as checkpoint:
        caches = checkpoint.kv_scales()
    if cache and kept.exists():
        try:
            model = load_model(kept, skeleton)
            attach_kv_scales(model, caches)
            return model.to(device)
        except FormatError as error:
            logger.warning("the converted copy %s is not used: %s", kept, error)
    model = _convert(folder, skeleton, dtype)
    attach_kv_scales(model, caches)
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
    schemes: dict[OpKey, OpScheme] = {}
    with QuantizedCheckpoint(folder) as checkpoint:
        modules = dict(model.named_modules())
        for name in checkpoint.layers:
            if name not in modules:
                raise FormatError(f"{folder} has a layer {name!r}; a {type(model).__name__} has none of that name")
            try:
                layer = module_of(checkpoint.layer(name), modules[name])
            except QuantizationError as error:
                raise FormatError(f"{folder}: layer {name!r} does not fit the model: {error}") from error
            replace_module(model, name, layer)
            schemes[name, type(modules[name]).__name__] = layer.scheme
        others = {name: checkpoint.tensors[name] for name in checkpoint.others}
        for name, tensor in others.items():
            if str(tensor.dtype).startswith("torch.float8"):
                raise FormatError(
                    f"{checkpoint.tensors.files[name]}: tensor {name!r} is stored as {tensor.dtype}, and no scale for it "
                    f"is there; a {checkpoint.format.name} checkpoint has {', '.join(checkpoint.format.parts)} of a layer"
                )
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


def write_checkpoint(
    model: nn.Module,
    folder: str | Path,
    layout: str = "compressed-tensors",
    kv_cache: Iterable[Any] | None = None,
) -> None:
    """Write the model as a Hugging Face checkpoint; a layer that ``layout`` cannot hold is an error that says why.

    ``kv_cache`` are batches that the model runs on: the checkpoint then has scales with which engines keep keys and values
    in fp8. A model that was loaded with such scales has them in its checkpoint again.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}; {close_matches(layout, LAYOUTS)}")
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ConfigError(f"a {type(model).__name__} has no transformers config; save it with format='default'")
    format = FORMATS[LAYOUTS[layout]]
    quantized = {name: module for name, module in model.named_modules() if isinstance(module, QuantModule)}
    as_float = {name: module for name, module in quantized.items() if isinstance(module, (QuantEmbedding, HalfModule))}
    layers = {name: module for name, module in quantized.items() if name not in as_float}
    if not layers:
        raise ConfigError("the model has no quantized linear layer; quantize it first")
    specs = {name: _storable(name, module, layout) for name, module in layers.items()}
    if layout in _FOR_ENGINES:
        _require_alike(model, specs)
    halves = [name for name, module in as_float.items() if module.op_type == "Linear"]
    ignore = [*halves, *(name for name, module in model.named_modules() if isinstance(module, nn.Linear))]
    ignore = [name for name in ignore if not name.endswith(".module") or name.removesuffix(".module") not in halves]
    caches = kv_scales_of(model) if kv_cache is None else observed_kv_scales(model, kv_cache)
    if caches and layout not in _FOR_ENGINES:
        raise ConfigError(f"the layout {layout!r} has no scales of a cache; {', '.join(_FOR_ENGINES)} have")
    block = format.config(specs, ignore, complete=True)
    if caches:
        block["kv_cache_scheme"] = kv_cache_scheme()
    settings = {**config.to_dict(), "architectures": [type(model).__name__], "quantization_config": block}
    if output_head(model) in layers.values():
        settings["tie_word_embeddings"] = False  # readers would put the table of embeddings in its place
    if as_float:
        logger.warning("stored in the float type of the model, as engines read these: %s", ", ".join(as_float))
    prefixes = tuple(f"{name}." for name in quantized)
    _require_no_float_model(Path(folder))
    with new_folder(folder, overwrite=True) as fresh:
        with shards_in(fresh) as writer:
            for name, tensor in unique_state(model)[0].items():
                if not name.startswith(prefixes):
                    writer.add(name, tensor.detach().cpu().contiguous())
            for name, other in as_float.items():
                for part, tensor in _as_float(other).items():
                    writer.add(f"{name}.{part}", tensor.to(_float_type(model)).cpu().contiguous())
            for name, scales in caches.items():
                for part, array in scales.tensors().items():
                    writer.add(f"{name}.{part}", array.cpu())
            for name, module in layers.items():
                for part, array in format.compress(checkpoint_layer(module), name).items():
                    writer.add(f"{name}.{part}", array)
        (fresh / "config.json").write_text(json.dumps(settings, indent=2, default=str), encoding="utf-8")
        for file, content in format.files(block).items():
            (fresh / file).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _storable(name: str, module: QuantModule, layout: str) -> Spec:
    """How a layer is quantized, if ``layout`` has a place for it."""
    reason: str | None
    try:
        layer = checkpoint_layer(module)
        reason = FORMATS[LAYOUTS[layout]].why_not(layer)
    except FormatError as error:
        layer, reason = None, str(error)
    if layer is None or reason is not None:
        others = ", ".join(repr(other) for other in LAYOUTS if other != layout)
        raise FormatError(
            f"layer {name!r} ({module.scheme.precision}) cannot be stored as {layout}: {reason}. Other layouts are "
            f"{others}; format='default' stores everything"
        )
    return layer.spec


def _require_alike(model: nn.Module, specs: Mapping[str, Spec]) -> None:
    """Refuse layers that engines multiply as one matrix and that are not quantized alike."""
    groups = layers_of_one_input(model)
    if groups is None:
        logger.info("layers that engines multiply as one are not compared: the model does not run on dummy inputs")
    for names in groups or ():
        found = {name: specs.get(name) for name in names}
        joined = ", ".join(names)
        if len(set(found.values())) > 1:
            told = "; ".join(f"{name}: {_told(spec)}" for name, spec in found.items())
            raise FormatError(
                f"engines multiply layers that read one input as one matrix, so {joined} have to be quantized alike, or "
                f"be left in float together. They are {told}. Give them one configuration with set_local"
            )
        scales = [getattr(model.get_submodule(name), "weight_tensor_scale", None) for name in names]
        values = {float(scale) for scale in scales if scale is not None}
        if len(values) > 1:
            raise FormatError(
                f"engines multiply layers that read one input as one matrix with one global scale, and {joined} have "
                f"{', '.join(f'{value:g}' for value in sorted(values))}; quantize them together, with a configuration that "
                "is given data (GPTQConfig), or in this release (RTNConfig) by one call for all"
            )


def _told(spec: Spec | None) -> str:
    if spec is None:
        return "float"
    if isinstance(spec, LinearSpec):
        return f"int{spec.bits}, groups of {spec.group_size}, {'symmetric' if spec.symmetric else 'asymmetric'}"
    return f"{spec.precision} {spec.mode}"


def _as_float(module: QuantModule) -> dict[str, torch.Tensor]:
    """The tensors of the float module that a quantized one stands for."""
    if isinstance(module, HalfModule):
        return {name: tensor.detach() for name, tensor in module.module.state_dict().items()}
    weight = module.dequantized_weight()
    assert weight is not None
    return {"weight": weight}


def _float_type(model: nn.Module) -> torch.dtype:
    """The type of what is left in float."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _require_no_float_model(folder: Path) -> None:
    """Refuse a folder with weights that are not quantized: they could not be had back."""
    config = folder / "config.json"
    if not any(file for kind in ("model*.safetensors", "pytorch_model*.bin") for file in folder.glob(kind)):
        return
    if (folder / "qconfig.json").exists():  # of ours, in the other format
        return
    if not config.exists() or "quantization_config" not in read_json(config):
        raise WorkspaceError(f"{folder} holds the weights of a model that is not quantized: choose another folder")
