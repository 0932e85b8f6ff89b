"""Edits that keep ONNX Runtime's own graph optimizations from undoing a layout.

A product and a constant added to it become a Gemm on loading, which runs in float where the summand is one. A float op
between a dequantizer and a quantizer gets its weight rounded to 8 bits with one scale, whatever the model says.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, discard, take_over
from neural_compressor.onnx.graph.ops import CLIPS
from neural_compressor.onnx.graph.queries import array_of, constant, input_of, only_consumer, producer, standard


def settle_summands(editor: GraphEditor, names: Collection[str]) -> None:
    """Make a Gemm of each MatMul of ``names`` on matrices with its summand; hide the summands of the others."""
    for node in list(editor.model.graph):
        if not standard(node, "MatMul") or node.name not in names:
            continue
        add = only_consumer(node)
        if add is None or not standard(add, "Add"):
            continue
        place = 1 if add.inputs[0] is node.outputs[0] else 0
        summand = constant(add.inputs[place])
        if summand is None or summand.ndim > 2 or any(size != 1 for size in summand.shape[:-1]):
            continue
        if all(_rank(value) == 2 for value in node.inputs) and summand.size in (1, _last_size(node.inputs[1])):
            _make_gemm(editor, node, add, input_of(add, place))
        elif summand.ndim == 1 and _is_fixed(input_of(node, 0)):
            _hide(editor, add, place)


def _is_fixed(value: ir.Value) -> bool:
    """Whether a tensor has more than two axes, all of known size: the runtime makes no Gemm of others."""
    return value.shape is not None and len(value.shape) > 2 and all(isinstance(size, int) for size in value.shape)


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _last_size(value: ir.Value | None) -> int | None:
    size = None if value is None or value.shape is None else value.shape[-1]
    return size if isinstance(size, int) else None


def _make_gemm(editor: GraphEditor, product: ir.Node, add: ir.Node, summand: ir.Value) -> None:
    name, inputs = product.name, [*product.inputs, summand]
    (result,) = editor.insert(add, "Gemm", inputs)
    take_over(add, result)
    gemm = result.producer()
    assert gemm is not None
    gemm.name = name


def _hide(editor: GraphEditor, add: ir.Node, place: int) -> None:
    """Give the summand a first axis of one, with which it is no longer what the runtime looks for."""
    old = input_of(add, place)
    add.replace_input_with(place, editor.weight(str(old.name), array_of(old)[None], editor.model.graph))
    discard(old)


_TAKEN = ("Conv", "ConvTranspose", "Gemm")


def shield(editor: GraphEditor) -> None:
    """Keep the float ops of a quantized graph in float."""
    for node in list(editor.model.graph):
        if standard(node, "QuantizeLinear") and _is_taken(_op_before(node)):
            (same,) = editor.insert(node, "Sum", [node.inputs[0]])
            node.replace_input_with(0, same)


def _op_before(quantizer: ir.Node) -> ir.Node | None:
    """The op whose result is quantized."""
    node = producer(quantizer.inputs[0])
    while node is not None and standard(node, *CLIPS):
        node = producer(node.inputs[0])
    return node


def _is_taken(node: ir.Node | None) -> bool:
    if node is None or not standard(node, *_TAKEN):
        return False
    activation, weight = (producer(value, "DequantizeLinear") for value in node.inputs[:2])
    return activation is not None and weight is None
