"""Models of Hugging Face folders, without weights or with those of GPTQ, AWQ, fp8 and compressed-tensors checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from neural_compressor.errors import ConfigError, FormatError, MissingDependencyError, QuantizationError, WorkspaceError
from neural_compressor.formats import QuantizedCheckpoint
from neural_compressor.formats.json_files import read_json
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.files.checkpoint import load_model, save_model
from neural_compressor.torch.files.checkpoint_layers import module_of
from neural_compressor.torch.files.fused_experts import fused_experts, stack_of, with_experts_together
from neural_compressor.torch.files.stored_names import StoredNames
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.base import is_finite
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.direct_forward import run_directly
from neural_compressor.torch.modules.kv_cache import attach_kv_scales, attentions_of
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.passes.survey import sharing_weights
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import find_ops, not_weight_only, op_type, output_head
from neural_compressor.torch.structure.ties import forget_ties, untie_stored

logger = logging.getLogger("neural_compressor")
CACHE = "neural_compressor_cache"
_ONCE_STORED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Buffers that transformers made part of checkpoints in earlier releases."""
_T = TypeVar("_T")


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


def empty_model(folder: Path, dtype: torch.dtype | None, kind: Any = None, **settings: Any) -> nn.Module:
    """The model that the config.json of a folder describes, without weights; ``kind`` is the class, where that is known.

    ``settings`` are other values of what config.json says.
    """
    transformers = transformers_module()
    config = _config_of(folder, **settings)
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


def _refuse_own_code(file: Path) -> None:
    """Refuse a model whose class is in its folder: transformers runs such code where it is asked to; it is not run here."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = read_json(file)
    if settings.get("auto_map") and settings.get("model_type") not in CONFIG_MAPPING:
        raise ConfigError(
            f"{file} is of a model with code of its own (auto_map), which is not run where a model is built from its "
            "config.json, whatever trust_remote_code says: load the model with transformers, then quantize() it, or give it "
            "to load() as original_model="
        )


def _config_of(folder: Path, **settings: Any) -> Any:
    """The transformers config of a folder with ``settings``, or an error that says what it lacks."""
    file = folder / "config.json"
    if file.exists():
        _refuse_own_code(file)
    if folder.is_dir() and not file.exists():
        _refuse_default_format(folder)
        raise FormatError(
            f"{folder} has no config.json, which says what model it holds: it is no Hugging Face checkpoint"
        )
    try:
        config, unused = transformers_module().AutoConfig.from_pretrained(folder, return_unused_kwargs=True, **settings)
    except (ValueError, OSError, KeyError, TypeError) as error:
        if file.exists() and "model_type" not in read_json(file):
            raise FormatError(f"{file} has no 'model_type', which says what model it is the config of") from error
        raise FormatError(f"{file} is not read by transformers: {error}") from error
    if unused:
        raise ConfigError(f"a {type(config).__name__} has no setting {', '.join(map(repr, unused))}; see {file}")
    return config


def _refuse_default_format(folder: Path) -> None:
    """Refuse what :func:`save_model` wrote, with the way to load it."""
    if (folder / "qconfig.json").exists():
        raise FormatError(
            f"{folder} holds a model in the default format of this toolkit (qconfig.json): load it with "
            "original_model=, the float model it was made from, and format='default'"
        )


def load_empty_model(
    pretrained_model_name_or_path: str | Path, cls: Any = None, *, dtype: torch.dtype | None = None, **settings: Any
) -> nn.Module:
    """The model of a Hugging Face folder without its weights: they are read from there when their turn comes, so that a
    checkpoint larger than memory can be quantized. ``settings`` are other values of what its config.json says; nothing is
    traced, so ``torchscript`` changes nothing."""
    settings.pop("torchscript", None)
    return empty_model(Path(pretrained_model_name_or_path), dtype, cls, **settings)


def load_checkpoint(
    folder: Path, original_model: nn.Module | None, device: str, dtype: torch.dtype | None, cache: bool = True
) -> nn.Module:
    """The model of a quantized folder on ``device``; a converted copy is kept in the folder for the next time."""
    if not (folder / "config.json").exists():
        _refuse_default_format(folder)
    skeleton = empty_model(folder, dtype) if original_model is None else sharing_weights(original_model).eval()
    kept = folder / CACHE / _identity(folder, dtype)
    with QuantizedCheckpoint(folder) as checkpoint:
        names = StoredNames(skeleton)
        caches = _without_unused(skeleton, {names.own(name): each for name, each in checkpoint.kv_scales().items()})
    attentions_of(skeleton, caches)  # which says what does not fit before the work
    if cache and kept.exists():
        try:
            model = load_model(kept, skeleton)
            attach_kv_scales(model, caches)
            return model.to(device)
        except FormatError as error:
            logger.warning("the converted copy %s is not used: %s", kept, error)
    model = _convert(folder, skeleton, dtype)
    if cache:
        try:
            save_model(model, kept)
        except WorkspaceError as error:
            logger.warning("the converted model is not kept for the next time: %s", error)
    attach_kv_scales(model, caches)  # last: the copy goes without, as the checkpoint is read for them each time
    return model.to(device)


def _identity(folder: Path, dtype: torch.dtype | None) -> str:
    """Changes when a file of the checkpoint does."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json"))
    facts = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    return hashlib.sha256(json.dumps([facts, str(dtype)]).encode()).hexdigest()[:16]


def _without_unused(model: nn.Module, found: Mapping[str, _T]) -> dict[str, _T]:
    """What ``found`` has by name, less that for which ``model`` has no place and no use, by its class in transformers.

    That are layers that guess further tokens (DeepSeek), and buffers that were once stored.
    """
    patterns = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), *_ONCE_STORED]
    known = {*dict(model.named_modules()), *model.state_dict()}
    unused = {name for name in found if name not in known and any(re.search(each, name) for each in patterns)}
    if unused:
        logger.info("not read, as transformers has no use for it: %s", ", ".join(sorted(unused)))
    return {name: value for name, value in found.items() if name not in unused}


def _check_floats(model: nn.Module, stored: Mapping[str, torch.Tensor], checkpoint: QuantizedCheckpoint) -> None:
    """Refuse tensors besides those of quantized layers that are codes, damaged, or of another shape than in ``model``.

    Buffers may be infinite: masks are.
    """
    places, parameters = model.state_dict(), dict(model.named_parameters())
    for name, tensor in stored.items():
        place, file = places.get(name), checkpoint.tensors.files.get(name, checkpoint.folder)
        is_number = place is not None and place.is_floating_point() and not tensor.is_floating_point()
        if is_number or str(tensor.dtype).startswith("torch.float8"):
            raise FormatError(
                f"{file}: tensor {name!r} is stored as {tensor.dtype}, and no scale for it is there; a "
                f"{checkpoint.format.name} checkpoint has {', '.join(checkpoint.format.parts)} of a layer"
            )
        if place is not None and tuple(tensor.shape) != tuple(place.shape):
            raise FormatError(
                f"{file}: tensor {name!r} has the shape {tuple(tensor.shape)}, and a {type(model).__name__} has "
                f"{tuple(place.shape)} there"
            )
        if name in parameters and not is_finite(tensor):
            raise FormatError(f"{file}: tensor {name!r} holds NaN or Inf: the file is damaged, or the model was before")


def _convert(folder: Path, model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    schemes: dict[OpKey, OpScheme] = {}
    with QuantizedCheckpoint(folder) as checkpoint:
        modules = dict(model.named_modules())
        names = StoredNames(model)
        layers = {names.own(layer): layer for layer in checkpoint.layers}
        stacks = fused_experts(model, layers)
        biases: dict[str, torch.Tensor] = {}
        for name, experts in stacks.items():
            kind = op_type(model, name)
            stack, bias = stack_of(model, name, [layers[each] for each in experts], checkpoint)
            schemes[name, kind] = stack.scheme
            replace_module(model, name, stack)
            biases |= {} if bias is None else {f"{name}_bias": bias}
        fused = {name for experts in stacks.values() for name in experts}
        alone = _without_unused(model, dict.fromkeys(name for name in layers if name not in fused))
        for name in alone:
            if name not in modules:
                raise FormatError(f"{folder} has a layer {name!r}; a {type(model).__name__} has none of that name")
            stored = checkpoint.layer(layers[name])
            try:
                layer = module_of(stored, modules[name])
            except (FormatError, QuantizationError) as error:
                raise FormatError(f"{folder}: layer {name!r} does not fit the model: {error}") from error
            replace_module(model, name, layer)
            schemes[name, type(modules[name]).__name__] = layer.scheme
        rest = _without_unused(model, {names.own(name): name for name in checkpoint.others})
        floats = {name: checkpoint.tensors[stored] for name, stored in rest.items()}
        others = biases | with_experts_together(model, floats)
        _check_floats(model, others, checkpoint)
    if dtype is not None:
        others = {name: t.to(dtype) if t.is_floating_point() else t for name, t in others.items()}
    if isinstance(output_head(model), QuantModule):  # which T5 ties whatever its configuration says
        forget_ties(model)
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
    run_directly(model)
    return model
