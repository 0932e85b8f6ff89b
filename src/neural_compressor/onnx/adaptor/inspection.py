"""Look inside a model: constants and outputs of ops as arrays, and constants written into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.op_parts import ROLES, constants_of
from neural_compressor.onnx.graph.graph import constant
from neural_compressor.onnx.runtime.batches import ModelInputs
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.registry import close_matches

INSPECT_TYPES = ("activation", "weight", "all")


def inspect_tensors(
    model: ir.Model,
    dataloader: Iterable[Any],
    ops: Sequence[Any],
    iterations: Sequence[int],
    kind: str,
    providers: Sequence[str],
) -> dict[str, Any]:
    """``{'weight': {op: {name: array}}, 'activation': [{op: {'output0': array}}, ...]}``, iterations counted from 1."""
    if kind not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {kind!r}; {close_matches(kind, INSPECT_TYPES)}")
    nodes = {str(node.name): node for node in model.graph}
    names = [op[0] if isinstance(op, tuple | list) else op for op in ops] or list(nodes)
    for name in names:
        if name not in nodes:
            raise ConfigError(f"no op is called {name!r}; {close_matches(str(name), nodes)}")
    chosen = {name: nodes[name] for name in names}
    found: dict[str, Any] = {}
    if kind in ("weight", "all"):
        constants = {name: constants_of(node) for name, node in chosen.items()}
        found["weight"] = {name: arrays for name, arrays in constants.items() if arrays}
    if kind in ("activation", "all"):
        found["activation"] = _activations(model, chosen, dataloader, iterations, providers)
    return found


def set_tensors(model: ir.Model, tensors: Mapping[str, Any]) -> ir.Model:
    """A new model with constants of ops replaced: ``{'op.tensor': array}``, named as :func:`inspect_tensors` does."""
    new = model.clone()
    places = {
        f"{node.name}.{ROLES.get(place, f'input{place}')}": value
        for node in new.graph
        for place, value in enumerate(node.inputs)
        if value is not None and constant(value) is not None
    }
    for name, given in tensors.items():
        if name not in places:
            raise ConfigError(f"the model has no tensor {name!r}; {close_matches(name, places)}")
        value = places[name]
        assert value.const_value is not None
        array = np.asarray(given).astype(value.const_value.numpy().dtype)
        if array.shape != tuple(value.const_value.shape.numpy()):
            raise ConfigError(f"tensor {name!r} has shape {tuple(value.const_value.shape.numpy())}, not {array.shape}")
        value.const_value = ir.tensor(array, name=value.name)
    return new


def _activations(
    model: ir.Model,
    nodes: Mapping[str, ir.Node],
    dataloader: Iterable[Any],
    iterations: Sequence[int],
    providers: Sequence[str],
) -> list[dict[str, dict[str, np.ndarray]]]:
    places = [(op, place) for op, node in nodes.items() for place, value in enumerate(node.outputs) if value.name]
    session = make_session(model, [str(nodes[op].outputs[place].name) for op, place in places], providers)
    inputs = ModelInputs.of(model)
    seen: list[dict[str, dict[str, np.ndarray]]] = []
    for index, batch in enumerate(dataloader, start=1):
        if index in iterations:
            arrays: dict[str, dict[str, np.ndarray]] = {}
            results = session.run(None, inputs.feed(inputs.split(batch)))
            for (op, place), array in zip(places, results, strict=True):
                arrays.setdefault(op, {})[f"output{place}"] = array
            seen.append(arrays)
        if index >= max(iterations):
            break
    return seen
