"""Looking at the tensors of a Keras model, and putting others in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.paths import write_errors
from neural_compressor.registry import close_matches
from neural_compressor.tensorflow.batches import in_structure, inputs_of
from neural_compressor.tensorflow.structure.ops import Graph
from neural_compressor.tensorflow.structure.simplify import copy_of
from neural_compressor.tensorflow.structure.trace import rebuild

INSPECT_TYPES = ("weight", "activation", "all")


def inspect(
    graph: Graph, dataloader: Iterable[Any], op_list: Sequence[Any], iterations: Sequence[int], inspect_type: str
) -> dict[str, Any]:
    """Weights, and outputs on some batches, of the ops named in ``op_list``, or of all."""
    if inspect_type not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {inspect_type!r}; {close_matches(str(inspect_type), INSPECT_TYPES)}")
    known = {node.operation.name: node for node in graph.nodes}
    wanted = [op if isinstance(op, str) else op[0] for op in op_list] or list(known)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"the model has no op called {name!r}; {close_matches(str(name), known)}")
    found: dict[str, Any] = {}
    if inspect_type != "activation":
        arrays = {name: tensors_of(known[name].operation) for name in wanted}
        found["weight"] = {name: tensors for name, tensors in arrays.items() if tensors}
    if inspect_type != "weight":
        outputs = {name: known[name].outputs for name in wanted}
        watching = keras.Model(graph.model.inputs, outputs)
        found["activation"] = []
        for number, batch in enumerate(dataloader, 1):
            if number in iterations:
                given = in_structure(graph.model, inputs_of(batch, graph.model))
                seen = watching(keras.tree.flatten(given), training=False)
                arrays = {name: {f"output{i}": np.asarray(t) for i, t in enumerate(ts)} for name, ts in seen.items()}
                found["activation"].append(arrays)
            if number >= max(iterations, default=0):
                break
    return found


def tensors_of(operation: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The weights of a layer by name."""
    if not isinstance(operation, keras.Layer):
        return {}
    return {variable.name: np.asarray(variable.numpy()) for variable in operation.weights}


def with_tensors(graph: Graph, tensors: Mapping[str, Any]) -> Any:
    """A copy of the model with ``{'op.tensor': array}`` written into it."""
    copies: dict[int, Any] = {}
    model = rebuild(
        graph.model,
        lambda node, args, kwargs: copies.setdefault(id(node.operation), copy_of(node.operation))(*args, **kwargs),
    )
    variables = {f"{layer.name}.{variable.name}": variable for layer in model.layers for variable in layer.weights}
    for name, value in tensors.items():
        if name not in variables:
            raise ConfigError(f"the model has no tensor {name!r}; {close_matches(str(name), variables)}")
        array = np.asarray(value, np.float32)
        if array.shape != tuple(variables[name].shape):
            raise ConfigError(f"tensor {name!r} has the shape {tuple(variables[name].shape)}, not {array.shape}")
        variables[name].assign(array)
    return model


def write_tensors(found: Mapping[str, Any], folder: Path) -> None:
    """Write what :func:`inspect` returned as .npz files."""
    files = {"weight": found.get("weight", {})}
    files |= {f"activation_{number}": tensors for number, tensors in enumerate(found.get("activation", []), 1)}
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in files.items():
            flat = {f"{op}/{part}": array for op, arrays in tensors.items() for part, array in arrays.items()}
            np.savez(folder / f"{name}.npz", allow_pickle=False, **flat)
