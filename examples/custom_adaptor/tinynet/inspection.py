"""Looking at the tensors of a network, and putting others in their place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from tinynet.network import Array, Network

PARAMETERS = ("weight", "bias")
INSPECT_TYPES = ("weight", "activation", "all")


def inspect_network(
    model: Network, dataloader: Iterable[Any], op_list: Sequence[Any], iterations: Sequence[int], inspect_type: str
) -> dict[str, Any]:
    """Weights and outputs of the layers named in ``op_list``, or of all."""
    if inspect_type not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {inspect_type!r}; {close_matches(inspect_type, INSPECT_TYPES)}")
    names = {op if isinstance(op, str) else op[0] for op in op_list} or {layer.name for layer in model}
    found: dict[str, Any] = {}
    if inspect_type != "activation":
        weights = {layer.name: _parameters(vars(layer)) for layer in model if layer.name in names}
        found["weight"] = {name: tensors for name, tensors in weights.items() if tensors}
    if inspect_type != "weight":
        batches = enumerate(dataloader, 1)
        found["activation"] = [_outputs(model, inputs, names) for n, (inputs, _) in batches if n in iterations]
    return found


def write_tensors(found: Mapping[str, Any], folder: Path) -> None:
    """Write what :func:`inspect_network` returned as .npz files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"weight": found.get("weight", {})}
    files |= {f"activation_{number}": tensors for number, tensors in enumerate(found.get("activation", []), 1)}
    for name, tensors in files.items():
        flat = {f"{op}/{part}": array for op, arrays in tensors.items() for part, array in arrays.items()}
        np.savez(folder / f"{name}.npz", **flat)


def with_tensors(model: Network, tensors: Mapping[str, Any]) -> Network:
    """A copy of ``model`` with ``{'layer.weight': array}`` written into it."""
    changed = copy.deepcopy(model)
    known = {f"{layer.name}.{part}": (layer, part) for layer in changed for part in _parameters(vars(layer))}
    for name, value in tensors.items():
        if name not in known:
            raise ConfigError(f"the network has no tensor {name!r}; {close_matches(name, known)}")
        layer, part = known[name]
        array = np.asarray(value, dtype=np.float32)
        if array.shape != np.shape(vars(layer)[part]):
            raise ConfigError(f"tensor {name!r} has shape {np.shape(vars(layer)[part])}, not {array.shape}")
        setattr(layer, part, array)
    return changed


def _parameters(attributes: Mapping[str, Any]) -> dict[str, Array]:
    return {part: np.asarray(attributes[part]) for part in PARAMETERS if part in attributes}


def _outputs(model: Network, inputs: Any, names: set[str]) -> dict[str, dict[str, Array]]:
    found: dict[str, dict[str, Array]] = {}
    x: Any = np.asarray(inputs, dtype=np.float32)
    for layer in model:
        x = layer(x)
        if layer.name in names and isinstance(x, np.ndarray):
            found[layer.name] = {"output0": x}
    return found
