"""Weights kept as integers in the file of a model that computes with them in float.

ONNX Runtime computes a Cast and a Mul of constants when it loads a model, which then runs as the float model does. A
DequantizeLinear it leaves where it is, and the kernels behind it are slower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.integer_tensors import quantized_array
from neural_compressor.onnx.graph.matrix_nodes import take_array
from neural_compressor.onnx.graph.queries import at_node, constant, graph_of, producer, standard, weight_refusal
from neural_compressor.schemes import PER_CHANNEL, OpKey, OpScheme, Plan, TensorScheme, float_op

STORED_TYPES = ("Conv", "ConvTranspose")
"""Op types whose weights are stored so."""
STORED = TensorScheme(dtype("int8"), granularity=PER_CHANNEL)
"""What a stored weight is where nothing else is said: scales cost no time here, so that there is one a channel."""
_GONE = "it is not needed: the op before it does its work, or nothing reads it"
_SHARED = "another op reads its weight as well, in float"


def is_stored(key: OpKey, scheme: OpScheme) -> bool:
    """Whether a plan has the weight of an op in integers, and its arithmetic in float."""
    kept_in_integers = scheme.weight is not None and not scheme.is_float
    return key[1] in STORED_TYPES and kept_in_integers and scheme.activation is None


def without_stored(plan: Plan) -> Plan:
    """What of ``plan`` is about arithmetic."""
    ops = {key: scheme for key, scheme in plan.items() if not is_stored(key, scheme)}
    return replace(plan, ops=ops)


def stored_instead(plan: Plan, left: Collection[OpKey]) -> Plan:
    """``plan`` with the ops of ``left`` in float, which it has in integers, and their weights stored where that is done."""
    changes = {}
    for key in left:
        stored = replace(plan[key], weight=STORED, activation=None)
        changes[key] = stored if is_stored(key, stored) else float_op("fp32", plan[key].weight is not None)
    return plan.with_ops(changes)


def storable_nodes(model: ir.Model) -> dict[OpKey, str | None]:
    """Every node of the op types whose weights can be stored, with why one cannot, or None where it can."""
    return {key: _refusal(node) for key, node in _candidates(model).items()}


def store_weights(model: ir.Model, plan: Plan) -> dict[OpKey, str]:
    """Change ``model`` in place to have the weights in integers that ``plan`` has stored; why others of these stay in float.

    A weight that several ops read is stored once, where all of them are to read it so.
    """
    left: dict[OpKey, str] = {}
    wanted = {key: scheme.weight for key, scheme in plan.items() if is_stored(key, scheme) and scheme.weight}
    if not wanted:
        return left
    nodes = _candidates(model)
    consumers: dict[ir.Value, dict[ir.Node, OpKey]] = {}
    for key in wanted:
        if reason := _refusal(nodes[key]) if key in nodes else _GONE:
            left[key] = reason
        elif (weight := nodes[key].inputs[1]) is not None:
            consumers.setdefault(weight, {})[nodes[key]] = key
    edit = GraphEditor(model)
    for weight, keys in consumers.items():
        if weight.is_graph_output() or any(use.node not in keys or use.idx != 1 for use in weight.uses()):
            left |= dict.fromkeys(keys.values(), _SHARED)
            continue
        node, key = next(iter(keys.items()))
        with at_node(node.name):
            _store(edit, weight, node, wanted[key])
    return left


def stored_floats(value: ir.Value | None) -> np.ndarray | None:
    """What a weight that was stored as integer codes is in float; None where ``value`` is something else."""
    if (node := producer(value, "Cast", *_STEPS)) is None:
        return None
    arrays = [stored_floats(each) if constant(each) is None else constant(each) for each in node.inputs]
    if any(array is None for array in arrays):
        return None
    if node.op_type == "Cast":
        codes = constant(node.inputs[0])
        return None if codes is not None and codes.dtype.kind not in "iu" else np.asarray(arrays[0], np.float32)
    return np.asarray(_STEPS[node.op_type](*arrays))


def _cut(array: np.ndarray, start: np.ndarray, end: np.ndarray, axis: np.ndarray) -> np.ndarray:
    return array.take(np.arange(start[0], end[0]), int(axis[0]))


_STEPS: Mapping[str, Callable[..., Any]] = {
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Gather": lambda values, places: values[places.astype(np.int64)],
    "Reshape": np.reshape,
    "Slice": _cut,
    "Transpose": np.transpose,
}
"""How codes become floats, here and where weights alone are quantized."""


def _candidates(model: ir.Model) -> dict[OpKey, ir.Node]:
    found = (node for node in model.graph.all_nodes() if standard(node, *STORED_TYPES))
    return {(str(node.name), node.op_type): node for node in found}


def _refusal(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if reason := weight_refusal(node, 1):
        return reason
    assert weight is not None
    assert weight.const_value is not None
    count, scales = weight.const_value.size, weight.const_value.shape.numpy()[_channel_axis(node)]
    # About what two nodes and their values take in a file: as measured, with the names they get.
    overhead = 256 + 7 * len(str(node.name)) + 3 * len(str(weight.name))
    return None if 3 * count > 4 * scales + overhead else "its weight would not be smaller in int8"


def _channel_axis(node: ir.Node) -> int:
    """The axis of output channels; in a ConvTranspose of several groups, the one that tells these apart."""
    return 1 if node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) == 1 else 0


def _store(edit: GraphEditor, weight: ir.Value, consumer: ir.Node, scheme: TensorScheme) -> None:
    """Put codes, and the nodes that make floats of them, in the place of ``weight``."""
    graph = graph_of(weight)
    array, axis = take_array(weight), _channel_axis(consumer)
    codes, scale, zero = quantized_array(array, scheme, axis)
    shape = [-1 if place == axis else 1 for place in range(array.ndim)] if scale.ndim else []
    users = set(weight.consumers())
    inside = any(user.graph is not graph for user in users)
    searched = users if len(users) == 1 and not inside else graph
    first = next(node for node in searched if inside or node in users)
    stored = edit.weight(f"{weight.name}_quantized", codes, graph)
    floats = edit.insert(first, "Cast", [stored], {"to": ir.DataType.FLOAT.value})[0]
    if zero.any():
        shift = edit.weight(f"{weight.name}_zero_point", zero.astype(np.float32).reshape(shape), graph)
        floats = edit.insert(first, "Sub", [floats, shift])[0]
    factor = edit.weight(f"{weight.name}_scale", scale.reshape(shape), graph)
    floats = edit.insert(first, "Mul", [floats, factor])[0]
    floats.type, floats.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(array.shape)
    weight.replace_all_uses_with(floats)
    discard(weight)
