"""A quantized model as a folder: ``model.safetensors`` and ``qconfig.json``. Nothing is pickled."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor.errors import FormatError, WorkspaceError
from neural_compressor.formats import new_folder
from neural_compressor.schemes import Plan
from neural_compressor.torch.conversion import Quantization, rebuild
from neural_compressor.torch.fold import Structure, replace_module
from neural_compressor.torch.nn import QuantModule
from neural_compressor.torch.nn.kernels import fits_kernel
from neural_compressor.torch.nn.matrix_stack import open_stacks
from neural_compressor.torch.relay import Relays

logger = logging.getLogger("neural_compressor")

WEIGHTS, CONFIG, VERSION = "model.safetensors", "qconfig.json", 1


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


def save_model(model: nn.Module, path: str | Path) -> None:
    """Write a quantized model into the folder ``path``; an older one there is replaced only when the new is complete."""
    done = getattr(model, "quantization", None)
    if not isinstance(done, Quantization):
        raise FormatError("this model was not quantized here: there is no plan to save with it")
    path = Path(path)
    if path.is_dir() and any(path.iterdir()) and not (path / CONFIG).exists():
        raise WorkspaceError(f"{path} exists and holds no quantized model: choose another folder, or empty it")
    tensors, aliases = unique_state(model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with new_folder(path, overwrite=True, needed=size) as folder:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, folder / WEIGHTS)
        config = {
            "format": "neural_compressor.torch",
            "version": VERSION,
            "plan": json.loads(done.plan.to_json()),
            "structure": asdict(done.structure),
            "reasons": [[*key, reason] for key, reason in done.reasons.items()],
            "relays": asdict(done.relays),
            "aliases": aliases,
            "sha256": _sha256(folder / WEIGHTS),
        }
        (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")


def load_model(path: str | Path, model: nn.Module) -> nn.Module:
    """Rebuild what :func:`save_model` wrote; ``model`` gives the architecture and is left as it is."""
    path = Path(path)
    config = _read_config(path)
    tensors = _read_tensors(path, config)
    for name, target in config["aliases"].items():
        tensors[name] = tensors[target]
    structure = Structure(**config["structure"])
    reasons = {(name, kind): reason for name, kind, reason in config["reasons"]}
    relays = _read_relays(config["relays"])
    done = Quantization(Plan.from_json(json.dumps(config["plan"])), structure, reasons, relays)
    try:
        base = copy.deepcopy(model)
        open_stacks(base, (name for name, _ in done.plan))
        for norm, layer in structure.folded.items():
            replace_module(base, norm, nn.Identity())
            _own_parameters(base.get_submodule(layer))
        new, used = rebuild(base, done, tensors)
        rest = {name: tensor for name, tensor in tensors.items() if name not in used}
        missing, unexpected = new.load_state_dict(rest, strict=False, assign=any(p.is_meta for p in new.parameters()))
    except (AttributeError, RuntimeError, KeyError) as error:
        raise FormatError(f"{path} does not fit a model of type {type(model).__name__}: {error}") from error
    lost = [name for name in missing if name not in used]
    if lost or unexpected:
        raise FormatError(
            f"{path} does not fit a model of type {type(model).__name__}: "
            f"missing tensors {lost[:5]}, unexpected tensors {list(unexpected)[:5]}"
        )
    _tell_simulated(new)
    return new


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


def _read_config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FormatError(f"{path} holds no quantized model: {CONFIG} is missing") from error
    except (OSError, ValueError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("format") != "neural_compressor.torch":
        raise FormatError(f"{file} is not the configuration of a quantized PyTorch model")
    if config.get("version") != VERSION:
        raise FormatError(f"{file} has version {config.get('version')!r}; this release reads version {VERSION}")
    return config


def _read_relays(stored: Mapping[str, Any]) -> Relays:
    if isinstance(stored.get("modules"), list):
        reasons = stored.get("reasons", {})
        return Relays([str(name) for name in stored["modules"]], reasons if isinstance(reasons, dict) else {})
    # Earlier files hold {op: the op that reads it}, children of one Sequential.
    return Relays(sorted({op.rpartition(".")[0] for op in stored}))


def _read_tensors(path: Path, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    file = path / WEIGHTS
    try:
        if _sha256(file) != config.get("sha256"):
            raise FormatError(
                f"{file} is damaged: its checksum is not the one in {CONFIG}; restore it or quantize again"
            )
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
