"""Float ops among integers, kept from being quantized by ONNX Runtime.

Where an op with a float weight reads what a dequantizer gives and a quantizer reads what it gives, the runtime makes 8-bit
integers of the weight on loading, of one scale in all, whatever the model says. A Sum of one summand, which computes
nothing, is between the op and the quantizer what it does not look through.
"""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.graph import standard
from neural_compressor.onnx.graph.op_table import CLIPS

_TAKEN = ("Conv", "ConvTranspose", "Gemm")


def shield(editor: GraphEditor) -> None:
    """Keep the float ops of a quantized graph in float."""
    for node in list(editor.model.graph):
        if standard(node, "QuantizeLinear") and _is_taken(_op_before(node)):
            (same,) = editor.insert(node, "Sum", [node.inputs[0]])
            node.replace_input_with(0, same)


def _op_before(quantizer: ir.Node) -> ir.Node | None:
    """The op whose result is quantized."""
    node = _producer(quantizer, 0)
    while node is not None and standard(node, *CLIPS):
        node = _producer(node, 0)
    return node


def _is_taken(node: ir.Node | None) -> bool:
    return node is not None and standard(node, *_TAKEN) and _reads_integers(node, 0) and not _reads_integers(node, 1)


def _reads_integers(node: ir.Node, place: int) -> bool:
    before = _producer(node, place)
    return before is not None and standard(before, "DequantizeLinear")


def _producer(node: ir.Node, place: int) -> ir.Node | None:
    value = node.inputs[place]
    return None if value is None else value.producer()
