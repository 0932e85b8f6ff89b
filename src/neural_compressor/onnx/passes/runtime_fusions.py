"""Hard swish in fewer nodes, and products with their summands in a form that ONNX Runtime keeps in integers."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, take_over
from neural_compressor.onnx.graph.queries import (
    clip_bounds,
    constant,
    is_float,
    only_consumer,
    producer,
    standard,
)

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


def settle_summands(editor: GraphEditor, names: Collection[str]) -> None:
    """Make a Gemm of each MatMul of ``names`` on matrices with its summand; hide the summands of the others.

    A product and a constant added to it become a Gemm on loading, which runs in float where the summand is one.
    """
    for node in list(editor.model.graph):
        add = only_consumer(node) if standard(node, "MatMul") and node.name in names else None
        if add is None or not standard(add, "Add"):
            continue
        place = 1 if add.inputs[0] is node.outputs[0] else 0
        summand = constant(add.inputs[place])
        if summand is None or summand.ndim > 2 or any(size != 1 for size in summand.shape[:-1]):
            continue
        left, right = (() if value is None or value.shape is None else tuple(value.shape) for value in node.inputs)
        if len(left) == len(right) == 2 and summand.size in (1, right[-1]):
            name = node.name
            (result,) = editor.insert(add, "Gemm", [*node.inputs, add.inputs[place]])
            take_over(add, result)
            gemm = result.producer()
            assert gemm is not None
            gemm.name = name
        elif summand.ndim == 1 and len(left) > 2 and all(isinstance(size, int) for size in left):
            # Only of a product with these axes the runtime makes a Gemm, and not where the summand has two of them.
            editor.set_constant(add, place, summand[None])
