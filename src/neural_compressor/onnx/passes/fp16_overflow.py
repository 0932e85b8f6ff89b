"""Values that may lie beyond what fp16 holds: powers, sums, and what is computed from them."""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.onnx.graph.graph import is_constant, standard

_GROW = ("Pow", "Exp", "CumSum", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd")
_CARRY = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sum", "Mean", "Max", "Min", "Where", "ReduceMean", "ReduceMax"),
    *("ReduceMin", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Concat"),
)
"""Ops whose result may be as large as what they read."""
_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")
"""Ops that are worth computing in half whatever they read."""


class FarValues:
    """Has to be asked about all nodes of a graph, in the order they run."""

    def __init__(self) -> None:
        self._far: set[ir.Value] = set()
        self._base: dict[ir.Value, ir.Value] = {}

    def needed_by(self, node: ir.Node) -> bool:
        """Whether ``node`` gives such values, or brings them back, and so had better compute in float32."""
        reads = any(value in self._far for value in node.inputs)
        grows = standard(node, *_GROW) or self._is_power(node)
        if grows or (reads and standard(node, *_CARRY)):
            self._far.update(node.outputs)
        return grows or (reads and not standard(node, *_PRODUCTS))

    def _is_power(self, node: ir.Node) -> bool:
        """Whether ``node`` multiplies a value with itself, whatever the factors."""
        if not standard(node, "Mul"):
            return False
        first, *others = dict.fromkeys(
            self._base.get(value, value) for value in node.inputs if value is not None and not is_constant(value)
        ) or (None,)
        if first is None or others:
            return False
        self._base[node.outputs[0]] = first
        return not any(is_constant(value) for value in node.inputs)
