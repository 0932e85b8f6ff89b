"""What stands around the product of a Gemm: a transposition of its input before it, a sum behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.graph import constant
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode


def upright_input(edit: GraphEditor, node: MatrixNode) -> ir.Value:
    """The input with the features on its last axis."""
    if not node.input_transposed:
        return node.input
    return edit.insert(node.node, "Transpose", [node.input], {"perm": [1, 0]})[0]


def added_terms(edit: GraphEditor, node: MatrixNode) -> tuple[ir.Value | None, ir.Value | None]:
    """What is added to the product: a constant with one number an output, or else any other value."""
    term, beta = node.bias, node.node.attributes.get_float("beta", 1.0)
    if term is None or beta == 0:
        return None, None
    array = constant(term)
    if array is None:
        if beta == 1:
            return None, term
        factor = edit.weight(f"{node.name}_beta", _as_type(np.float32(beta), node.dtype), edit.model.graph)
        return None, edit.insert(node.node, "Mul", [term, factor])[0]
    outputs = node.shape[0]
    is_vector = array.size == 1 or (array.size == outputs and array.shape[-1] == outputs)
    if beta == 1 and (not is_vector or array.shape == (outputs,)):
        return (term, None) if is_vector else (None, term)
    scaled = _as_type(array.astype(np.float32) * np.float32(beta), node.dtype)
    if is_vector:
        scaled = np.broadcast_to(scaled.reshape(-1), (outputs,))
    new = edit.weight(f"{term.name}_added", scaled, edit.model.graph)
    return (new, None) if is_vector else (None, new)


def _as_type(array: np.ndarray | np.generic, dtype: ir.DataType) -> np.ndarray:
    return np.asarray(array).astype(dtype.numpy())
