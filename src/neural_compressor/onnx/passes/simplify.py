"""Simplification ahead of quantization: the same model with fewer steps between the ops that get quantized.

Hard swish written out in four nodes, as exporters do, is brought back to two, and where it pays to one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from neural_compressor.onnx.graph.editor import GraphEditor, bypass, discard, take_over
from neural_compressor.onnx.graph.queries import (
    array_of,
    clip_bounds,
    constant,
    is_constant,
    is_float,
    only_consumer,
    producer,
    standard,
)
from neural_compressor.onnx.passes.affine_folding import fold_affine, fold_factors


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
    common.RemoveUnusedNodesPass()(editor.model)
    for node in list(editor.model.graph):
        if standard(node, "Identity", "Dropout"):
            _drop(node)
        elif transpose and standard(node, "Transpose"):
            _transpose_now(editor, node)
        elif standard(node, "Gemm"):
            _without_factors(editor, node)
    fold_affine(editor)
    shorten_hard_swish(editor)


def _drop(node: ir.Node) -> None:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    value = node.inputs[0]
    mask_used = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    fixed = training is None or (is_constant(training) and not np.any(constant(training)))
    if value is not None and fixed and not mask_used:
        bypass(node, value)


def _transpose_now(editor: GraphEditor, node: ir.Node) -> None:
    """Exporters write the transpose of a weight as a node of its own, which hides that the result is constant."""
    value = node.inputs[0]
    array = constant(value) if is_float(value) else None
    if array is not None and value is not None:
        axes = node.attributes.get_ints("perm", tuple(reversed(range(array.ndim))))
        turned = np.ascontiguousarray(array.transpose(axes))
        bypass(node, editor.weight(f"{value.name}_transposed", turned, editor.model.graph))


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


OPSET_OF_HARD_SWISH = 14


def has_hard_swish(model: ir.Model) -> bool:
    """Whether the model has a hard swish in two nodes, which could be one."""
    return any(_gated(node) is not None for node in model.graph)


def name_hard_swish(editor: GraphEditor) -> None:
    """``x * HardSigmoid(x)`` as one node: the runtime would dequantize ``x`` for each of the two by itself."""
    for node in list(editor.model.graph):
        if (product := _gated(node)) is not None:
            (swish,) = editor.insert(product, "HardSwish", [node.inputs[0]])
            take_over(product, swish)


def _gated(node: ir.Node) -> ir.Node | None:
    """The product of ``node``, a HardSigmoid as hard swish has it, with what it reads."""
    slope, middle = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    if not standard(node, "HardSigmoid") or abs(slope - 1 / 6) > 1e-6 or abs(middle - 0.5) > 1e-6:
        return None
    product = only_consumer(node)
    return product if product is not None and standard(product, "Mul") and node.inputs[0] in product.inputs else None


def shorten_hard_swish(editor: GraphEditor) -> None:
    """``x * clip(x + 3, 0, 6) / 6`` as ``x * HardSigmoid(x)``: between integer convolutions each pass over floats counts."""
    for node in list(editor.model.graph):
        if standard(node, "Clip") and node.graph is not None:
            _shorten(editor, node)


def _shorten(editor: GraphEditor, clip: ir.Node) -> None:
    add = producer(clip.inputs[0], "Add")
    if add is None or clip_bounds(clip) != (0.0, 6.0):
        return
    x, first = _beside(add, 3.0), only_consumer(clip)
    last = None if first is None else only_consumer(first)
    if x is None or not is_float(x) or first is None or last is None:
        return
    product, division = (last, first) if _is_sixth(first) else (first, last)
    if not _is_sixth(division) or not standard(product, "Mul") or x not in product.inputs:
        return
    (gate,) = editor.insert(clip, "HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})
    gate.type, gate.shape = x.type, x.shape
    (swish,) = editor.insert(last, "Mul", [x, gate])
    take_over(last, swish)


def _beside(node: ir.Node, number: float) -> ir.Value | None:
    """What ``node`` combines with the constant ``number``."""
    for value, operand in (node.inputs, tuple(reversed(node.inputs))):
        if (array := constant(operand)) is not None and array.size == 1 and abs(array.item() - number) < 1e-6:
            return value
    return None


def _is_sixth(node: ir.Node) -> bool:
    """Whether ``node`` divides by six."""
    if standard(node, "Div"):
        array = constant(node.inputs[1])
        return array is not None and array.size == 1 and array.item() == 6
    return standard(node, "Mul") and _beside(node, 1 / 6) is not None
