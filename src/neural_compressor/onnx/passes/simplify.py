"""Simplification ahead of quantization: the same model with fewer steps between the ops that get quantized."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.queries import array_of, constant, is_constant, is_float, standard
from neural_compressor.onnx.passes.affine_folding import fold_affine, fold_factors
from neural_compressor.onnx.passes.hard_swish import shorten_hard_swish


def simplify(model: ir.Model) -> None:
    """Change ``model`` in place as far as it helps integers; the nodes with weights keep their names."""
    editor = GraphEditor(model)
    _tidy(editor, transpose=True)
    fold_factors(editor)


def tidy(model: ir.Model) -> None:
    """Take out in place what no runtime needs; the nodes with weights keep their names.

    So the file is smaller, and what stays in float is faster. Matrices are left alone, which may be large and in a file.
    """
    _tidy(GraphEditor(model), transpose=False)


def _tidy(editor: GraphEditor, *, transpose: bool) -> None:
    graph = editor.model.graph
    common.RemoveUnusedNodesPass()(editor.model)
    for node in list(graph):
        if standard(node, "Identity", "Dropout"):
            _drop(graph, node)
        elif transpose and standard(node, "Transpose"):
            _transpose_now(editor, node)
        elif standard(node, "Gemm"):
            _without_factors(editor, node)
    fold_affine(editor)
    shorten_hard_swish(editor)


def _drop(graph: ir.Graph, node: ir.Node) -> None:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    value = node.inputs[0]
    mask_used = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    fixed = training is None or (is_constant(training) and not np.any(constant(training)))
    if value is not None and fixed and not mask_used:
        _read_instead(graph, node, value)


def _transpose_now(editor: GraphEditor, node: ir.Node) -> None:
    """Exporters write the transpose of a weight as a node of its own, which hides that the result is constant."""
    value = node.inputs[0]
    array = constant(value) if is_float(value) else None
    if array is not None and value is not None:
        axes = node.attributes.get_ints("perm", tuple(reversed(range(array.ndim))))
        graph = editor.model.graph
        new = editor.weight(f"{value.name}_transposed", np.ascontiguousarray(array.transpose(axes)), graph)
        _read_instead(graph, node, new)
        discard(value)


def _read_instead(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Let all that read ``node`` read ``value``; an output of the model keeps the node."""
    for user, place in node.outputs[0].uses():
        user.replace_input_with(place, value)
    if not node.outputs[0].is_graph_output():
        graph.remove(node, safe=True)


def _without_factors(editor: GraphEditor, node: ir.Node) -> None:
    """``alpha`` and ``beta`` of a Gemm moved into its constants: integer kernels know no ``beta``."""
    for name, place in (("alpha", 1), ("beta", 2)):
        factor = node.attributes.get_float(name, 1.0)
        value = node.inputs[place] if len(node.inputs) > place else None
        if factor == 1 or (value is not None and not (is_constant(value) and is_float(value))):
            continue
        if value is not None:
            scaled = np.asarray(array_of(value) * np.float32(factor))
            node.replace_input_with(place, editor.weight(str(value.name), scaled, editor.model.graph))
            discard(value)
        node.attributes.pop(name)
