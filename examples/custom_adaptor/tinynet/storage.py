"""Quantized networks on disk: one file of plain arrays, codes packed to their bits."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neural_compressor.errors import FormatError
from neural_compressor.schemes import PackedArray, Plan, QParams
from tinynet.network import Array, Layer, Network
from tinynet.quantized import Quantize, QuantizedNetwork, QuantizedWeight, quantize_layers

FILE = "network.npz"


def save_network(model: QuantizedNetwork, folder: Path) -> None:
    """Write ``model`` into ``folder``: a reader sees the old file or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = np.frombuffer(model.plan.to_json().encode(), dtype=np.uint8)
    unfinished = folder / f"{FILE}.{os.getpid()}"
    with unfinished.open("wb") as file:
        np.savez(file, plan=plan, **stored_arrays(model))
    unfinished.replace(folder / FILE)


def load_network(folder: Path, network: Network) -> QuantizedNetwork:
    """Read what :func:`save_network` wrote of a model made from ``network``."""
    file = folder / FILE
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        plan = Plan.from_json(arrays.pop("plan").tobytes().decode())
        loaded = quantize_layers(network, plan, _qparams(plan, arrays))
        for layer in loaded:
            _restore(layer, arrays)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise FormatError(f"{file} is not a network saved from a model like this one: {error}") from error
    return loaded


def stored_arrays(network: Network) -> dict[str, Array]:
    """Everything of a network that goes to disk, by name."""
    return {name: array for layer in network for name, array in layer_arrays(layer).items()}


def layer_arrays(layer: Layer) -> dict[str, Array]:
    """The arrays of a layer: parameters, packed where they are quantized, and the scale of a Quantize."""
    found: dict[str, Array] = {}
    for part, value in vars(layer).items():
        if isinstance(value, QuantizedWeight):
            packed = value.array.pack().arrays()
            found |= {f"{layer.name}/{part}/{name}": np.asarray(array) for name, array in packed.items()}
        elif isinstance(value, np.ndarray):
            found[f"{layer.name}/{part}"] = value
    if isinstance(layer, Quantize) and layer.qparams is not None:
        parts = {"scale": layer.qparams.scale, "zero_point": layer.qparams.zero_point}
        found |= {f"{layer.name}/{part}": np.asarray(array) for part, array in parts.items() if array is not None}
    return found


def _qparams(plan: Plan, arrays: Mapping[str, Array]) -> dict[str, QParams]:
    """The parameters of the inputs of the static ops."""
    static = [name for (name, _), scheme in plan.items() if scheme.mode == "static" and scheme.activation is not None]
    return {name: QParams(arrays[f"{name}.input/scale"], arrays.get(f"{name}.input/zero_point")) for name in static}


def _restore(layer: Layer, arrays: Mapping[str, Array]) -> None:
    """Put stored parameters in place of those of ``layer``."""
    for part, value in list(vars(layer).items()):
        name = f"{layer.name}/{part}"
        if isinstance(value, QuantizedWeight):
            fields = {key.rsplit("/", 1)[-1]: array for key, array in arrays.items() if key.startswith(f"{name}/")}
            packed = PackedArray.from_arrays(fields, value.array.scheme, value.array.shape)
            setattr(layer, part, QuantizedWeight(packed.unpack()))
        elif isinstance(value, np.ndarray):
            setattr(layer, part, arrays[name])
