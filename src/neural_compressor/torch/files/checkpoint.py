"""A quantized model as a folder: ``model.safetensors`` and ``qconfig.json``. Nothing is pickled.

``qconfig.json`` has a checksum of the tensors and one of all it says itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor.errors import FormatError, NeuralCompressorError, WorkspaceError
from neural_compressor.formats import new_folder
from neural_compressor.formats.json_files import read_json
from neural_compressor.formats.kv_cache import read_kv_scales
from neural_compressor.paths import path_of
from neural_compressor.schemes import Plan
from neural_compressor.schemes.block import is_power_of_two_scale
from neural_compressor.torch.checks import copy_of, require_module
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.function_products import (
    FunctionProduct,
    check_sites,
    close_products,
    open_products,
    opened_products,
)
from neural_compressor.torch.modules.kernels.integer import fits_kernel
from neural_compressor.torch.modules.kv_cache import attach_kv_scales, kv_scales_of
from neural_compressor.torch.modules.matrix_stack import open_stacks
from neural_compressor.torch.modules.relay import Relays
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantized_model import Quantization, rebuild
from neural_compressor.torch.structure.ops import op_type
from neural_compressor.torch.structure.ties import untie_stored

logger = logging.getLogger("neural_compressor")

WEIGHTS, CONFIG, FORMAT, VERSION = "model.safetensors", "qconfig.json", "neural_compressor.torch", 3
_WORTH_SHARING = 1024
"""Smaller tensors are stored as often as they come: many are equal by chance."""


def unique_state(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The state of a model with tied tensors once, and ``{other name: stored name}``."""
    stored: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise FormatError(f"the state of {name!r} is a {type(tensor).__name__}, and only tensors can be saved")
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        if place in seen:
            aliases[name] = seen[place]
        else:
            seen[place] = name
            stored[name] = tensor
    return stored, aliases


def _equal_once(model: nn.Module, stored: dict[str, torch.Tensor], aliases: dict[str, str]) -> None:
    """Leave out codes that another quantized op has too, as those have whose weights were tied."""
    quantized = {name for name, module in model.named_modules() if isinstance(module, QuantModule)}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in list(stored.items()):
        if tensor.numel() < _WORTH_SHARING or name.rpartition(".")[0] not in quantized:
            continue
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // 16)].cpu().contiguous()
        known = alike.setdefault((tensor.shape, tensor.dtype, some.view(torch.uint8).numpy().tobytes()), [])
        twin = next((other for other in known if torch.equal(stored[other], tensor)), None)
        if twin is None:
            known.append(name)
            continue
        del stored[name]
        aliases |= {name: twin, **{alias: twin for alias, target in aliases.items() if target == name}}


def save_model(model: nn.Module, path: str | Path) -> None:
    """Write a quantized model into the folder ``path``; an older one there is replaced only when the new is complete."""
    done = getattr(model, "quantization", None)
    if not isinstance(done, Quantization):
        raise FormatError("this model was not quantized here: there is no plan to save with it")
    path = path_of(path, "save")
    if path.is_dir() and any(path.iterdir()) and not (path / CONFIG).exists():
        raise WorkspaceError(
            f"{path} exists and holds no quantized model of this format: choose another folder, or empty it"
        )
    tensors, aliases = unique_state(model)
    _equal_once(model, tensors, aliases)
    caches = {name: scales.tensors() for name, scales in kv_scales_of(model).items()}
    tensors |= {f"{name}.{part}": scale for name, parts in caches.items() for part, scale in parts.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with new_folder(path, overwrite=True, needed=size) as folder:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, folder / WEIGHTS)
        config = {
            "format": FORMAT,
            "version": VERSION,
            "plan": json.loads(done.plan.to_json()),
            "structure": asdict(done.structure),
            "reasons": [[*key, reason] for key, reason in done.reasons.items()],
            "relays": asdict(done.relays),
            "aliases": aliases,
            **({"caches": {name: list(parts) for name, parts in caches.items()}} if caches else {}),
            "sha256": sha256(folder / WEIGHTS),
        }
        config["checksum"] = checksum(config)
        (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")


def load_model(path: str | Path, model: nn.Module) -> nn.Module:
    """Rebuild what :func:`save_model` wrote; ``model`` gives the architecture and is left as it is."""
    path = path_of(path, "load")
    require_module(model, "load")
    config = _read_config(path / CONFIG)
    tensors = read_tensors(path, config.sha256)
    structure = Structure(**config.structure.model_dump())
    reasons = {(name, kind): reason for name, kind, reason in config.reasons}
    done = Quantization(_read_plan(config, path / CONFIG), structure, reasons, _read_relays(config.relays))
    base = copy_of(model)
    try:
        for name, target in config.aliases.items():
            tensors[name] = tensors[target]
        if config.version < 3:
            _with_exponents_of_elements(tensors, done.plan)
        caches = {
            name: read_kv_scales({part: tensors.pop(f"{name}.{part}") for part in parts}, name, {})
            for name, parts in config.caches.items()
        }
        open_products(base, {name: FunctionProduct(*each) for name, each in structure.products.items()})
        _check_types(base, done.plan)
        close_products(base, [name for name, _ in done.plan])
        check_sites(base, opened_products(base))
        open_stacks(base, (name for name, _ in done.plan))
        for norm, layer in structure.folded.items():
            replace_module(base, norm, nn.Identity())
            _own_parameters(base.get_submodule(layer))
        new, used = rebuild(base, done, tensors)
        rest = {name: tensor for name, tensor in tensors.items() if name not in used}
        _check_floats(new, rest)
        untie_stored(new, rest)
        missing, unexpected = new.load_state_dict(rest, strict=False, assign=any(p.is_meta for p in new.parameters()))
    except (NeuralCompressorError, AttributeError, RuntimeError, KeyError) as error:
        raise FormatError(f"{path} does not fit a model of type {type(model).__name__}: {error}") from error
    lost = [name for name in missing if name not in used]
    if lost or unexpected:
        raise FormatError(
            f"{path} does not fit a model of type {type(model).__name__}: "
            f"missing tensors {lost[:5]}, unexpected tensors {list(unexpected)[:5]}"
        )
    attach_kv_scales(new, caches)
    _tell_simulated(new)
    return new


def _with_exponents_of_elements(tensors: dict[str, torch.Tensor], plan: Plan) -> None:
    """Have scales of MX integers that are those of their codes, as files up to version 2 hold them, be those of elements."""
    for (name, _), op in plan.items():
        kind = None if op.weight is None else op.weight.dtype
        if kind is None or kind.scale_type is None or not is_power_of_two_scale(kind.scale_type):
            continue
        lower = -127 - round(math.log2(kind.scale_type.grid[0]))
        for scale in [each for each in tensors if each.startswith(f"{name}.") and each.endswith("weight_scale")]:
            codes = tensors[scale]
            tensors[scale] = torch.where(codes == 255, codes, codes + lower)  # 255 is NaN


def _check_types(model: nn.Module, plan: Plan) -> None:
    for name, kind in plan:
        found = op_type(model, name)
        if found != kind:
            raise FormatError(f"the plan calls op {name!r} a {kind}, and the model has a {found} there")


def _check_floats(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse float tensors that no model was quantized with. Buffers may be infinite: masks are."""
    parameters, state = dict(model.named_parameters()), model.state_dict()
    for name, tensor in tensors.items():
        if name not in state:
            continue
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise FormatError(f"tensor {name!r} is {tensor.dtype}, and the model has {state[name].dtype} there")
        if not tensor.is_floating_point():
            continue
        fine = ~torch.isnan(tensor) if name not in parameters else torch.isfinite(tensor)
        if not bool(fine.all()):
            raise FormatError(f"tensor {name!r} holds NaN or Inf")


def _tell_simulated(model: nn.Module) -> None:
    """Say where a model has integer ops that another machine runs and this one does not."""
    found = [m for m in model.modules() if isinstance(m, QuantModule) and fits_kernel(m.op_type, m.scheme)]
    reasons = Counter(why for m in found if (why := m.why_simulated()))
    for why, count in reasons.items():
        logger.warning("%d of %d int8 ops are simulated here, in float: %s", count, len(found), why)


def _own_parameters(layer: nn.Module) -> None:
    """Folding gave the layer a bias, and a weight that is no longer tied to any other."""
    if not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
        return
    layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=layer.weight.requires_grad)
    if layer.bias is None:
        width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        layer.bias = nn.Parameter(torch.zeros(width, dtype=layer.weight.dtype, device=layer.weight.device))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _StoredStructure(_Part):
    folded: dict[str, str] = Field(default_factory=dict)
    relus: dict[str, str] = Field(default_factory=dict)
    summed: list[str] = Field(default_factory=list)
    unfolded: dict[str, str] = Field(default_factory=dict)
    products: dict[str, tuple[str, str]] = Field(default_factory=dict)


class _StoredRelays(_Part):
    modules: list[str]
    reasons: dict[str, str] = Field(default_factory=dict)


class _StoredConfig(_Part):
    """What ``qconfig.json`` holds."""

    format: str
    version: int
    plan: dict[str, Any]
    structure: _StoredStructure
    reasons: list[tuple[str, str, str]]
    relays: _StoredRelays | dict[str, str]
    aliases: dict[str, str]
    caches: dict[str, list[str]] = Field(default_factory=dict)
    sha256: str
    checksum: str = ""


def stored_format(path: Path) -> str:
    """Which format the folder ``path`` is in, as it says itself; nothing where it does not."""
    file = path / CONFIG
    return str(read_json(file).get("format", "")) if file.is_file() else ""


def read_checked(file: Path, format: str, newest: int, unchecked: int = 0) -> dict[str, Any]:
    """What the configuration ``file`` says, its format, version and checksum checked; version ``unchecked`` has none."""
    if not file.parent.is_dir():
        raise FormatError(f"{file.parent} is not a folder with a quantized model")
    config = read_json(file)
    if config.get("format") != format:
        raise FormatError(f"{file} is not the configuration of a quantized PyTorch model")
    version = config.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= newest:
        raise FormatError(f"{file} has version {version!r}; this release reads versions 1 to {newest}")
    if version == unchecked:
        logger.info("%s is of an earlier release and has no checksum of its own: changes to it would not be seen", file)
    elif config.get("checksum") != checksum(config):
        raise FormatError(
            f"{file} was changed after it was written: its checksum is another; restore it or quantize again"
        )
    return config


def _read_config(file: Path) -> _StoredConfig:
    config = read_checked(file, FORMAT, VERSION, unchecked=1)
    try:
        return _StoredConfig.model_validate_json(json.dumps(config))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"{file}: {where}: {first['msg']}, got {str(first['input'])[:80]!r}") from error


def checksum(config: Mapping[str, Any]) -> str:
    """Of all that the configuration says, the checksum of the tensors included."""
    said = {name: value for name, value in config.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _read_plan(config: _StoredConfig, file: Path) -> Plan:
    try:
        return Plan.from_json(json.dumps(config.plan))
    except (NeuralCompressorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{file}: plan: {type(error).__name__}: {error}; it has to be what Plan.to_json writes"
        ) from error


def _read_relays(stored: _StoredRelays | dict[str, str]) -> Relays:
    if isinstance(stored, _StoredRelays):
        return Relays(stored.modules, stored.reasons)
    # Earlier files hold {op: the op that reads it}, children of one Sequential.
    return Relays(sorted({op.rpartition(".")[0] for op in stored}))


def read_tensors(path: Path, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of the folder ``path``, of which ``digest`` is the checksum."""
    file = path / WEIGHTS
    try:
        if sha256(file) != digest:
            raise FormatError(
                f"{file} is damaged: its checksum is not the one in {CONFIG}; restore it or quantize again"
            )
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error


def sha256(file: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
