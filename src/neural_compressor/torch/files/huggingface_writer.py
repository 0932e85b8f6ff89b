"""Quantized models written as Hugging Face checkpoints, for transformers and serving engines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import ConfigError, FormatError, WorkspaceError
from neural_compressor.formats import FORMATS, Layer, LinearSpec, new_folder
from neural_compressor.formats.base import Spec
from neural_compressor.formats.json_files import read_json
from neural_compressor.formats.kv_cache import attention_group, kv_cache_scheme
from neural_compressor.formats.safetensors_writer import shards_in
from neural_compressor.paths import check_writable
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Plan
from neural_compressor.torch.files.checkpoint import unique_state
from neural_compressor.torch.files.checkpoint_layers import checkpoint_layer, layers_of_one_input, observed_input_scales
from neural_compressor.torch.files.fused_experts import experts_in_float, layers_of_experts, with_experts_apart
from neural_compressor.torch.files.huggingface_differences import (
    FOR_ENGINES,
    tell_differences,
    tell_quantized_head,
    tell_rounded_anew,
    tell_tied_head,
)
from neural_compressor.torch.files.stored_names import StoredNames
from neural_compressor.torch.files.streaming import is_empty
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.build import quantized_module
from neural_compressor.torch.modules.embedding import QuantEmbedding
from neural_compressor.torch.modules.half import HalfModule
from neural_compressor.torch.modules.kv_cache import kv_scales_of, observed_kv_scales, require_attentions
from neural_compressor.torch.modules.matrix_stack import QuantMatrixStack
from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.ops import output_head

logger = logging.getLogger("neural_compressor")
LAYOUTS = {
    "compressed-tensors": "mixed-precision",
    **{name: name for name in ("fp8", "modelopt", "gptq", "gptq_v2", "awq")},
}


def write_checkpoint(
    model: nn.Module,
    folder: str | Path,
    layout: str = "compressed-tensors",
    kv_cache: Iterable[Any] | None = None,
    input_data: Iterable[Any] | None = None,
) -> None:
    """Write the model as a Hugging Face checkpoint; a layer that ``layout`` cannot hold is an error that says why.

    ``kv_cache`` are batches that the model runs on: the checkpoint then has scales with which engines keep keys and values
    in fp8. A model that was loaded with such scales has them in its checkpoint again. ``input_data`` are batches too, from
    which layers with NVFP4 inputs that were quantized dynamically get the global scale that engines want beforehand.
    """
    config = _checked_config(model, layout)
    format = FORMATS[LAYOUTS[layout]]
    quantized = {name: module for name, module in model.named_modules() if isinstance(module, QuantModule)}
    as_float = {name: module for name, module in quantized.items() if isinstance(module, (QuantEmbedding, HalfModule))}
    layers = {name: module for name, module in quantized.items() if name not in as_float}
    if not layers:
        raise ConfigError("the model has no quantized linear layer; quantize it first")
    ranges = {} if input_data is None else observed_input_scales(layers, model, input_data)
    specs: dict[str, Spec] = {}
    for name, module in layers.items():
        specs |= _storable(model, name, module, layout, ranges.get(name))
    _check_alike(model, specs, layout)
    halves = [name for name, module in as_float.items() if module.op_type == "Linear"]
    ignore = [*halves, *(name for name, module in model.named_modules() if _is_float_matrix(module))]
    ignore = [name for name in ignore if not name.endswith(".module") or name.removesuffix(".module") not in halves]
    experts = experts_in_float(model)
    ignore += [layer for each in experts.values() for layers_of_one in each for layer in layers_of_one]
    caches = kv_scales_of(model) if kv_cache is None else observed_kv_scales(model, kv_cache)
    if caches:
        _require_scales_of_caches(layout)
    names = StoredNames(model)
    # Engines look layers up by the names of the checkpoint, transformers by its own.
    named = specs | {names.stored(name): spec for name, spec in specs.items()}
    block = format.config(named, dict.fromkeys([*ignore, *map(names.stored, ignore)]), complete=True)
    if caches:
        block["kv_cache_scheme"] = kv_cache_scheme()
    rounded = [name for name, scales in caches.items() if scales.queries is not None]
    if layout == "compressed-tensors":  # elsewhere readers go by the tensors alone
        for kind in dict.fromkeys(type(model.get_submodule(name)).__name__ for name in rounded):
            block["config_groups"][f"group_{len(block['config_groups'])}"] = attention_group(kind)
    settings = {**config.to_dict(), "architectures": [type(model).__name__], "quantization_config": block}
    settings["torch_dtype" if "torch_dtype" in settings else "dtype"] = str(_float_type(model)).removeprefix("torch.")
    if (head := output_head(model)) in layers.values():
        settings["tie_word_embeddings"] = False  # readers would put the table of embeddings in its place
        tell_tied_head(model, settings)
        tell_quantized_head(next(name for name, module in layers.items() if module is head), layout)
    tell_differences(layers, specs, layout, _float_type(model))
    if as_float:
        logger.warning("stored in the float type of the model, as engines read these: %s", ", ".join(as_float))
    tied = bool(settings.get("tie_word_embeddings"))
    _require_no_float_model(Path(folder))
    with new_folder(folder, overwrite=True) as fresh:
        with shards_in(fresh) as writer:
            for name, tensor in with_experts_apart(_float_tensors(model, as_float, tied), experts):
                writer.add(names.stored(name), tensor.cpu().contiguous())
            for name, scales in caches.items():
                for part, array in scales.tensors().items():
                    writer.add(names.stored(f"{name}.{part}"), array.cpu())
            for name, module in layers.items():
                for called, layer in _layers_of(model, name, module, ranges.get(name)).items():
                    for part, array in format.compress(layer, called).items():
                        writer.add(names.stored(f"{called}.{part}"), array)
        (fresh / "config.json").write_text(json.dumps(settings, indent=2, default=str), encoding="utf-8")
        for file, content in format.files(block).items():
            (fresh / file).write_text(json.dumps(content, indent=2), encoding="utf-8")


def check_checkpoint(
    model: nn.Module, plan: Plan, folder: str | Path, layout: str, kv_cache: bool, input_data: bool = False
) -> None:
    """Refuse what :func:`write_checkpoint` will, as far as it is known of a float ``model`` and its ``plan``.

    ``kv_cache`` and ``input_data`` say whether it will be given data.
    """
    _checked_config(model, layout)
    if kv_cache:
        _require_scales_of_caches(layout)
        require_attentions(model)
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise WorkspaceError(f"{path} is no folder; give the path of a new one")
    check_writable(path)
    _require_no_float_model(path)
    specs: dict[str, Spec] = {}
    modules = dict(model.named_modules())
    quantized = {name: scheme for (name, _), scheme in plan.items() if not scheme.is_float}
    for name, scheme in quantized.items():
        module = modules.get(name)
        is_linear = type(module) is nn.Linear or (module is not None and is_conv1d(module))
        if is_linear and scheme.mode != "static":  # scales of static inputs come from data
            seen = torch.ones(()) if input_data else None
            specs |= _storable(model, name, quantized_module(_stand_in(module), scheme), layout, seen)
    if layout in FOR_ENGINES and specs.keys() == quantized.keys() and not is_empty(model):
        _check_alike(model, specs, layout)


def _stand_in(module: Any) -> nn.Module:
    """A layer of the kind of ``module`` with values of both signs: formats ask for its inputs, and its outputs modulo 32."""
    rows, columns = module.weight.shape[::-1] if is_conv1d(module) else module.weight.shape
    rows = 32 + rows % 32
    values = torch.arange(rows * columns, dtype=torch.float32).sin()
    with torch.device("meta"):  # which draws no random numbers
        new = type(module)(rows, columns) if is_conv1d(module) else nn.Linear(columns, rows, module.bias is not None)
    new.weight = nn.Parameter(values.reshape(new.weight.shape))
    new.bias = None if new.bias is None else nn.Parameter(torch.zeros(rows))
    return new


def _checked_config(model: nn.Module, layout: str) -> Any:
    """The transformers configuration of a model that is written in a ``layout`` there is."""
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}; {close_matches(layout, LAYOUTS)}")
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ConfigError(f"a {type(model).__name__} has no transformers config; save it with format='default'")
    return config


def _require_scales_of_caches(layout: str) -> None:
    if layout not in FOR_ENGINES:
        raise ConfigError(f"the layout {layout!r} has no scales of a cache; {', '.join(FOR_ENGINES)} have")


def _layers_of(model: nn.Module, name: str, module: QuantModule, input_scale: torch.Tensor | None) -> dict[str, Layer]:
    """What a checkpoint has of a module: a layer, or those of each expert."""
    if isinstance(module, QuantMatrixStack):
        return layers_of_experts(model, name, module)
    return {name: checkpoint_layer(module, input_scale)}


def _storable(
    model: nn.Module, name: str, module: QuantModule, layout: str, input_scale: torch.Tensor | None
) -> dict[str, Spec]:
    """How the layers of a module are quantized, if ``layout`` has a place for them."""
    found: dict[str, Layer] = {}
    reason: str | None
    try:
        if layout in FOR_ENGINES and module.op_type == "Conv1D":
            raise FormatError(
                "it is one of transformers' Conv1D layers, and readers of this layout know Linear layers alone: they would "
                "leave it with random weights. Keep these layers in float with set_local"
            )
        found = _layers_of(model, name, module, input_scale)
        reason = next((why for each in found.values() if (why := FORMATS[LAYOUTS[layout]].why_not(each))), None)
    except FormatError as error:
        reason = str(error)
    if reason is not None:
        others = ", ".join(repr(other) for other in LAYOUTS if other != layout)
        told = f"Other layouts are {others}; " if found else ""  # what is no layer of a checkpoint fits none
        raise FormatError(
            f"layer {name!r} ({module.scheme.precision}) cannot be stored as {layout}: {reason}. "
            f"{told}format='default' stores everything"
        )
    return {called: layer.spec for called, layer in found.items()}


def _check_alike(model: nn.Module, specs: Mapping[str, Spec], layout: str) -> None:
    """:func:`_require_alike`; in a layout that transformers reads layer by layer a warning is enough."""
    try:
        _require_alike(model, specs)
    except FormatError as error:
        if layout in FOR_ENGINES:
            raise
        logger.warning("serving engines do not read this checkpoint, transformers does: %s", error)


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
                f"{', '.join(f'{value:g}' for value in sorted(values))}; quantize the float model "
                "again: one configuration for all of them, such as RTNConfig or GPTQConfig, gives them one"
            )
    tell_rounded_anew([{name: model.get_submodule(name) for name in names} for names in groups or ()])


def _is_float_matrix(module: nn.Module) -> bool:
    """Whether engines have a linear layer there: transformers has routers of experts, too, as modules of their own."""
    weight = None if isinstance(module, (nn.Embedding, QuantModule)) else module._parameters.get("weight")
    return isinstance(module, nn.Linear) or (weight is not None and weight.dim() == 2)


def _told(spec: Spec | None) -> str:
    if spec is None:
        return "float"
    if isinstance(spec, LinearSpec):
        return f"int{spec.bits}, groups of {spec.group_size}, {'symmetric' if spec.symmetric else 'asymmetric'}"
    return f"{spec.precision} {spec.mode}"


def _float_tensors(
    model: nn.Module, as_float: Mapping[str, QuantModule], tied: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """What stays in float, and modules that are stored ``as_float``; readers tie the output head again where ``tied``."""
    state, aliases = unique_state(model)
    if not tied:  # readers tie nothing then, whatever else was one tensor
        state |= {name: state[stored] for name, stored in aliases.items()}
    quantized = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, QuantModule))
    for name, tensor in state.items():
        if not name.startswith(quantized):
            yield name, tensor.detach()
    for name, other in as_float.items():
        for part, tensor in _as_float(other).items():
            yield f"{name}.{part}", tensor.to(_float_type(model))


def _as_float(module: QuantModule) -> dict[str, torch.Tensor]:
    """The tensors of the float module that a quantized one stands for."""
    if isinstance(module, HalfModule):
        return {name: tensor.detach() for name, tensor in module.module.state_dict().items()}
    weight = module.dequantized_weight()
    assert weight is not None
    return {"weight": weight}


def _float_type(model: nn.Module) -> torch.dtype:
    """The type of what is left in float, besides layers that were put in half precision."""
    halves = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, HalfModule))
    floats = {name: p.dtype for name, p in model.named_parameters() if p.is_floating_point()}
    return next((kind for name, kind in floats.items() if not name.startswith(halves)), torch.float32)


def _require_no_float_model(folder: Path) -> None:
    """Refuse a folder with weights that are not quantized: they could not be had back."""
    config = folder / "config.json"
    if not any(file for kind in ("model*.safetensors", "pytorch_model*.bin") for file in folder.glob(kind)):
        return
    if (folder / "qconfig.json").exists():  # of ours, in the other format
        return
    if not config.exists() or "quantization_config" not in read_json(config):
        raise WorkspaceError(f"{folder} holds the weights of a model that is not quantized: choose another folder")
