"""Spectra that a model computes and takes the logarithm of: there integers lose what matters.

A logarithm gives small values the weight of large ones. Integers of 8 bits have one step for all, some 48 dB below the
largest value, and spectra of sound reach over 80 dB and more.
"""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.onnx.graph.queries import standard
from neural_compressor.schemes import OpKey

BEFORE_LOGARITHM = "a logarithm reads it, to which small values matter as much as large ones"
"""Why such a node stays in float."""
_POWER = ("Abs", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sqrt")
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_KEEPING = (
    *("Add", "Cast", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Identity", "Max", "Mul", "Neg", "Pad"),
    *("ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
)


def before_logarithm(model: ir.Model) -> dict[OpKey, str]:
    """The nodes between an input and a logarithm of the power of what they compute, with why they stay in float.

    The way back from a logarithm ends at what is no part of a transform, such as an activation function: that of
    probabilities, or at the end of a network, is none of these.
    """
    found: dict[OpKey, str] = {}
    for logarithm in model.graph:
        if standard(logarithm, "Log"):
            nodes = _transform(logarithm)
            if any(_is_power(node) for node in nodes):
                found |= {(str(node.name), node.op_type): BEFORE_LOGARITHM for node in nodes}
    return found


def _transform(logarithm: ir.Node) -> dict[ir.Node, None]:
    """The nodes that lead to a logarithm, the last first."""
    nodes: dict[ir.Node, None] = {}
    waiting = list(logarithm.inputs)
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if node is not None and node not in nodes and standard(node, *_POWER, *_LINEAR, *_KEEPING):
            nodes[node] = None
            waiting += node.inputs
    return nodes


def _is_power(node: ir.Node) -> bool:
    return standard(node, *_POWER) or (standard(node, "Mul") and node.inputs[0] is node.inputs[1])
