"""The weights of Keras layers among the constants of a converted file, and how they are stored there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_compressor.algorithms import LayerResult
from neural_compressor.schemes import OpScheme, QuantizedArray
from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, LiteOp
from neural_compressor.tensorflow.litert.quantizer import lite_scheme
from neural_compressor.tensorflow.litert.stored_weights import StoredWeight, has_rows_to_look_up, kernel_name, layouts

CHANGED = (
    "the converter made a constant of its weight that has other values, or gave it to another op too: a factor behind the "
    "layer was multiplied into it; put the factor into the layer, or keep it in float"
)


@dataclass(frozen=True)
class WeightPlace:
    """A constant of a file (of graph ``graph``, read by an op of type ``kind``) that is ``weight`` of a layer."""

    graph: int
    tensor: int
    kind: str
    order: tuple[int, ...]
    weight: str


def weight_places(
    lite: LiteGraph,
    layers_of: Callable[[LiteOp, int], Sequence[str]],
    results: Mapping[str, Mapping[str, LayerResult]],
    kinds: Mapping[str, Sequence[str]],
) -> dict[str, list[WeightPlace]]:
    """Where the weights of layers are: known by the names of tensors, and by their values, which must be ours.

    ``layers_of`` names the layers that an op of a graph may belong to, ``kinds`` the types of ops that each may become.
    """
    values = {name: {key: _values(each) for key, each in found.items()} for name, found in results.items()}
    found: dict[str, list[WeightPlace]] = {}
    for graph in range(lite.subgraphs):
        ops = lite.ops_in(graph)
        for op in ops:
            for name in layers_of(op, graph):
                if name in values and op.kind in kinds.get(name, ()):
                    found.setdefault(name, []).extend(_matching(lite, op, graph, values[name]))
        for name, places in list(found.items()):
            own = {each.tensor for each in places if each.graph == graph}
            others = [op for op in ops if own & {*op.constants} and name not in layers_of(op, graph)]
            if others:
                del found[name]
    return {name: places for name, places in found.items() if {each.weight for each in places} == {*values[name]}}


def _matching(lite: LiteGraph, op: LiteOp, graph: int, values: Mapping[str, Any]) -> Iterator[WeightPlace]:
    tensor = lite.weight(op, graph)
    array = None if tensor is None else lite.constant(tensor, graph)
    if tensor is None or array is None:
        return
    for weight, matrix in values.items():
        for order in layouts(op.kind, array.ndim):
            if array.size == matrix.size and np.array_equal(array.transpose(order).reshape(matrix.shape), matrix):
                yield WeightPlace(graph, tensor, op.kind, order, weight)
                return


def _values(result: LayerResult) -> Any:
    return np.asarray(result.dequantize(), np.float32)


def stored_weights(
    lite: LiteGraph, scheme: OpScheme, places: Sequence[WeightPlace], results: Mapping[str, LayerResult]
) -> tuple[str, list[StoredWeight]] | str:
    """What the ops of a layer are in the file, and its weights as these store them; or why they stay floats there."""
    if not places:
        return CHANGED
    stored: dict[str, StoredWeight] = {}
    for place in places:
        told = lite_scheme(place.kind, scheme)
        if isinstance(told, str):
            return told
        result = results[place.weight]
        array = None if scheme.is_float else result.array
        assert array is None or isinstance(array, QuantizedArray)
        name = lite.unique_name(place.tensor, place.graph)
        stored[name] = StoredWeight(name, place.graph, place.order, array, told.integer, result.input_scale)
    weights, kind = list(stored.values()), places[0].kind
    if kind == "GATHER" and all(has_rows_to_look_up(each.array) for each in weights):
        return "EMBEDDING_LOOKUP", weights
    return kernel_name(kind, weights[0].integer), weights
