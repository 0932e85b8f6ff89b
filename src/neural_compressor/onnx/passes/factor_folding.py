"""A factor ahead of convolutions and products, done by their weights instead."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.graph import array_of, constant, input_of, is_constant, is_float, standard
from neural_compressor.onnx.passes.affine_folding import only_reader


def fold_factors(editor: GraphEditor) -> None:
    """Fold ``x * factor``, and the factor of ``x * factor + summand``, into the weights of all that read the result."""
    for node in list(editor.model.graph):
        if (found := _factor(node)) is None:
            continue
        value, factor = found
        add = only_reader(node)
        place = None if add is None else _summand(add, node.outputs[0])
        result = node.outputs[0] if add is None or place is None else add.outputs[0]
        readers = result.uses()
        if not readers or result.is_graph_output() or not all(_is_linear(node, *use) for use in readers):
            continue
        for reader in {use.node: None for use in readers}:
            _scale(editor, reader, 1, factor)
        if add is not None and place is not None:
            _scale(editor, add, place, 1 / factor)
        _replace(editor.model.graph, node, value)


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


def _scale(editor: GraphEditor, node: ir.Node, place: int, factor: float) -> None:
    old = input_of(node, place)
    scaled = np.asarray(array_of(old) * np.float32(factor))
    node.replace_input_with(place, editor.weight(str(old.name), scaled, editor.model.graph))
    discard(old)


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    inputs = list(node.inputs)
    node.outputs[0].replace_all_uses_with(value)
    graph.remove(node, safe=True)
    for each in inputs:
        discard(each)
