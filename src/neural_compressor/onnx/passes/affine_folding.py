"""Multiplications and additions of constants before or behind an op, done by its weight and bias instead.

Between an op and the quantizer of its output nothing may be left, or the runtime computes it in float.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, bypass, discard, take_over
from neural_compressor.onnx.graph.queries import (
    array_of,
    constant,
    input_of,
    is_constant,
    is_float,
    only_consumer,
    standard,
)

Affine = tuple[np.ndarray, np.ndarray]
"""Factor and summand by channel, as float64."""


def fold_affine(editor: GraphEditor) -> None:
    """Fold BatchNormalization and Mul, Div, Add, Sub with a constant into the op before them that has a weight."""
    for node in list(editor.model.graph):
        if standard(node, "Conv", "ConvTranspose", "Gemm") and _has_constants(node):
            while (following := only_consumer(node)) is not None:
                affine = _affine(following, node)
                if affine is None:
                    break
                _apply(editor, node, affine)
                take_over(following, node.outputs[0])


def _has_constants(node: ir.Node) -> bool:
    return (
        is_constant(node.inputs[1]) and is_float(node.inputs[1]) and (_bias(node) is None or is_constant(_bias(node)))
    )


def _bias(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


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


def fold_factors(editor: GraphEditor) -> None:
    """Fold ``x * factor``, and the factor of ``x * factor + summand``, into the weights of all that read the result."""
    for node in list(editor.model.graph):
        if (found := _factor(node)) is None:
            continue
        value, factor = found
        add = only_consumer(node)
        place = None if add is None else _summand(add, node.outputs[0])
        result = node.outputs[0] if add is None or place is None else add.outputs[0]
        consumers = result.uses()
        if not consumers or result.is_graph_output() or not all(_is_linear(node, *use) for use in consumers):
            continue
        for consumer in {use.node: None for use in consumers}:
            _scale_input(editor, consumer, 1, factor)
        if add is not None and place is not None:
            _scale_input(editor, add, place, 1 / factor)
        bypass(node, value)


def _factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What ``node`` multiplies, and the number other than zero it multiplies it by."""
    if not standard(node, "Mul", "Div"):
        return None
    value, operand = node.inputs
    if node.op_type == "Mul" and is_constant(value):
        value, operand = operand, value
    array = constant(operand)
    if array is None or array.size != 1 or array.dtype != np.float32 or value is None or is_constant(value):
        return None
    # A factor of more axes than the value would give the result these axes.
    if array.ndim > 1 and (value.shape is None or len(value.shape) < array.ndim):
        return None
    number = float(array.item()) if node.op_type == "Mul" else 1 / float(array.item() or np.nan)
    return (value, number) if np.isfinite(number) and number != 0 else None


def _summand(node: ir.Node, value: ir.Value) -> int | None:
    """The place of a constant that ``node`` adds to ``value``."""
    if not standard(node, "Add"):
        return None
    place = 1 if node.inputs[0] is value else 0
    return place if is_constant(node.inputs[place]) and is_float(node.inputs[place]) else None


def _is_linear(factor: ir.Node, node: ir.Node, place: int) -> bool:
    """Whether ``node`` multiplies what it reads at ``place`` with a weight of its own."""
    linear = standard(node, "Conv", "ConvTranspose", "MatMul", "Gemm") and node.graph is factor.graph and place == 0
    return linear and is_constant(node.inputs[1]) and is_float(node.inputs[1])


def _scale_input(editor: GraphEditor, node: ir.Node, place: int, factor: float) -> None:
    old = input_of(node, place)
    scaled = np.asarray(array_of(old) * np.float32(factor))
    node.replace_input_with(place, editor.weight(str(old.name), scaled, editor.model.graph))
    discard(old)
