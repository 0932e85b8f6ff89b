"""Multiplications and additions of constants behind a convolution or Gemm, done by its weight and bias instead.

Between an op and the quantizer of its output nothing may be left, or the runtime computes it in float.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.graph import array_of, constant, is_constant, is_float, standard

Affine = tuple[np.ndarray, np.ndarray]
"""Factor and summand by channel, as float64."""


def fold_affine(editor: GraphEditor) -> None:
    """Fold BatchNormalization and Mul, Div, Add, Sub with a constant into the op before them that has a weight."""
    for node in list(editor.model.graph):
        if standard(node, "Conv", "ConvTranspose", "Gemm") and _has_constants(node):
            while (following := only_reader(node)) is not None:
                affine = _affine(following, node)
                if affine is None:
                    break
                _apply(editor, node, affine)
                take_over(node.outputs[0], following)


def take_over(value: ir.Value, node: ir.Node) -> None:
    """Let ``value`` stand for the first output of ``node``, under its name, and remove the node."""
    old, inputs = node.outputs[0], list(node.inputs)
    value.type, value.shape = old.type or value.type, old.shape
    name, old.name = old.name, None
    value.name = name
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    for each in inputs:
        discard(each)


def _has_constants(node: ir.Node) -> bool:
    return (
        is_constant(node.inputs[1]) and is_float(node.inputs[1]) and (_bias(node) is None or is_constant(_bias(node)))
    )


def _bias(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def only_reader(node: ir.Node) -> ir.Node | None:
    """The one node of the same graph that reads what ``node`` gives, where nothing else does."""
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0].node.graph is not node.graph:
        return None
    return uses[0].node


def _channels(node: ir.Node) -> int:
    shape: tuple[int, ...] = array_of(node.inputs[1]).shape
    if node.op_type == "Conv":
        return shape[0]
    if node.op_type == "ConvTranspose":
        return shape[1] * node.attributes.get_int("group", 1)
    return shape[0 if node.attributes.get_int("transB", 0) else 1]


def _affine(node: ir.Node, before: ir.Node) -> Affine | None:
    """What ``node`` does to the output of ``before``, where that is a factor and a summand a channel."""
    channels = _channels(before)
    if standard(node, "BatchNormalization"):
        return _batch_norm(node)
    if not standard(node, "Mul", "Div", "Add", "Sub"):
        return None
    place = 1 if node.inputs[0] is before.outputs[0] else 0
    operand = constant(node.inputs[place])
    if operand is None or operand.dtype != np.float32 or (place == 0 and node.op_type in ("Div", "Sub")):
        return None
    rank = array_of(before.inputs[1]).ndim
    shape = (1,) * (rank - operand.ndim) + operand.shape
    if len(shape) != rank or any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    values = np.broadcast_to(operand.reshape(-1).astype(np.float64), (channels,))
    ones, zeros = np.ones(channels), np.zeros(channels)
    if node.op_type == "Div" and not values.all():
        return None
    return {
        "Mul": (values, zeros),
        "Div": (ones / np.where(values, values, 1), zeros),
        "Add": (ones, values),
        "Sub": (ones, -values),
    }[node.op_type]


def _batch_norm(node: ir.Node) -> Affine | None:
    parameters = [constant(value) for value in node.inputs[1:5]]
    unused = not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    training = bool(node.attributes.get_int("training_mode", 0))
    if not unused or training or any(p is None for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return factor, shift - mean * factor


def _apply(editor: GraphEditor, node: ir.Node, affine: Affine) -> None:
    factor, summand = affine
    shift = constant(_bias(node))
    if not (factor == 1).all():
        editor.set_constant(node, 1, _scaled(node, array_of(node.inputs[1]).astype(np.float64), factor))
    before = np.zeros_like(summand) if shift is None else shift.astype(np.float64)
    if shift is not None or summand.any():
        editor.set_constant(node, 2, before * factor + summand)


def _scaled(node: ir.Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    if node.op_type == "Gemm":
        return np.asarray(weight * (factor[:, None] if node.attributes.get_int("transB", 0) else factor))
    tail = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        return np.asarray(weight * factor.reshape(-1, 1, *tail))
    groups = node.attributes.get_int("group", 1)
    by_group = weight.reshape(groups, -1, *weight.shape[1:]) * factor.reshape(groups, 1, -1, *tail)
    return np.asarray(by_group.reshape(weight.shape))
