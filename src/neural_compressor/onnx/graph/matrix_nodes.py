"""The nodes whose constant matrix can be quantized by itself: MatMul, Gemm, and Gather from a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.files.mapped_file import release
from neural_compressor.onnx.graph.graph import standard

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The types of weights that are quantized."""
MATRIX_OPS = ("MatMul", "Gemm", "Gather")


@dataclass(frozen=True, eq=False)
class MatrixNode:
    """A node with a constant matrix of ``shape`` (outputs, inputs), or (entries, width) for a Gather.

    ``weight`` is the initializer that holds it, ``transposed`` where that is (inputs, outputs). Between it and the node
    there may be a Cast or a Transpose. ``factor`` multiplies the matrix.
    """

    node: ir.Node
    weight: ir.Value
    transposed: bool
    factor: float = 1.0

    @property
    def name(self) -> str:
        """The name of the node."""
        assert self.node.name is not None
        return self.node.name

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        assert self.weight.const_value is not None
        first, second = self.weight.const_value.shape.numpy()
        return (second, first) if self.transposed else (first, second)

    @property
    def dtype(self) -> ir.DataType:
        """The type of the float input and output."""
        value = self.node.inputs[0 if self.node.op_type == "Gather" else 1]
        assert value is not None
        return value.dtype or self.weight.dtype or ir.DataType.FLOAT

    @property
    def input(self) -> ir.Value:
        """What is multiplied, or looked up."""
        value = self.node.inputs[1 if self.node.op_type == "Gather" else 0]
        assert value is not None
        return value

    @property
    def input_transposed(self) -> bool:
        """Whether the node multiplies with the transpose of its input."""
        return self.node.op_type == "Gemm" and bool(self.node.attributes.get_int("transA", 0))

    @property
    def bias(self) -> ir.Value | None:
        """What is added to the product."""
        return self.node.inputs[2] if self.node.op_type == "Gemm" and len(self.node.inputs) > 2 else None

    def matrix(self) -> np.ndarray:
        """The weight as float32 (outputs, inputs), in memory of its own; a file it lies in is closed again."""
        array = take_array(self.weight)
        if self.transposed:
            array = np.ascontiguousarray(array.T)
        return array if self.factor == 1 else array * np.float32(self.factor)


def take_array(weight: ir.Value) -> np.ndarray:
    """A constant as float32 in memory of its own; what the file it lies in takes there is given back."""
    tensor = weight.const_value
    assert tensor is not None
    array = np.array(tensor.numpy(), dtype=np.float32)
    release(tensor)
    return array


def weight_only_nodes(model: ir.Model) -> dict[str, MatrixNode]:
    """The nodes of ``model``, a normalised one, whose weights can be quantized, by name in the order they run."""
    return {name: found for name, found in _examined(model).items() if isinstance(found, MatrixNode)}


def left_in_float(model: ir.Model) -> dict[str, str]:
    """The MatMul, Gemm and float Gather nodes whose weights cannot be quantized, with the reason."""
    return {name: found for name, found in _examined(model).items() if isinstance(found, str)}


def _examined(model: ir.Model) -> dict[str, MatrixNode | str]:
    found = {node.name or "": examine(node) for node in model.graph.all_nodes() if standard(node, *MATRIX_OPS)}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def examine(node: ir.Node) -> MatrixNode | str | None:
    """``node`` with its matrix, or why it has none that can be quantized; None where it does not compute with floats."""
    is_gather = node.op_type == "Gather"
    operand = node.inputs[0 if is_gather else 1]
    if operand is None or (operand.dtype is not None and operand.dtype not in FLOATS):
        return None
    if (found := _constant_behind(operand)) is None:
        return f"its {'table' if is_gather else 'second input'} is not a constant"
    weight, swapped = found
    assert weight.const_value is not None
    if weight.const_value.dtype not in FLOATS:
        return None if is_gather else f"its weight is of type {weight.const_value.dtype.name}"
    if len(weight.const_value.shape) != 2 or weight.const_value.size == 0:
        return f"its weight has shape {list(weight.const_value.shape)}, and two axes with values on them are needed"
    if is_gather:
        if node.attributes.get_int("axis", 0) not in (0, -2):
            return "it looks up along the second axis of its table"
        return MatrixNode(node, weight, swapped)
    outputs_first = swapped != bool(node.op_type == "Gemm" and node.attributes.get_int("transB", 0))
    factor = node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0
    return MatrixNode(node, weight, not outputs_first, factor)


def _constant_behind(value: ir.Value) -> tuple[ir.Value, bool] | None:
    """The initializer that ``value`` is made from by casts and transpositions, and whether they swap its axes."""
    swapped = False
    while (node := value.producer()) is not None:
        if not standard(node, "Cast", "Transpose", "Identity") or node.inputs[0] is None:
            return None
        if node.op_type == "Transpose":
            swapped ^= list(node.attributes.get_ints("perm", (1, 0))) == [1, 0]
        value = node.inputs[0]
    return None if value.const_value is None or value.is_graph_input() else (value, swapped)
