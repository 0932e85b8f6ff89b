"""The nodes whose constant matrix can be quantized by itself: MatMul, Gemm, and Gather from a table."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.files.mapped_file import release
from neural_compressor.onnx.files.model_file import weight_bytes
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.queries import constant, input_of, optional_input, standard

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
    def is_table(self) -> bool:
        """Whether entries are looked up in the matrix."""
        return self.node.op_type == "Gather"

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        assert self.weight.const_value is not None
        first, second = self.weight.const_value.shape.numpy()
        return (second, first) if self.transposed else (first, second)

    @property
    def dtype(self) -> ir.DataType:
        """The type of the float input and output."""
        value = input_of(self.node, 0 if self.is_table else 1)
        return value.dtype or self.weight.dtype or ir.DataType.FLOAT

    @property
    def input(self) -> ir.Value:
        """What is multiplied, or looked up."""
        return input_of(self.node, 1 if self.is_table else 0)

    @property
    def input_transposed(self) -> bool:
        """Whether the node multiplies with the transpose of its input."""
        return self.node.op_type == "Gemm" and bool(self.node.attributes.get_int("transA", 0))

    @property
    def bias(self) -> ir.Value | None:
        """What is added to the product."""
        return optional_input(self.node, 2) if self.node.op_type == "Gemm" else None

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


_SMALL = 1 << 15
"""A matrix of fewer numbers stays in the cache of a core as floats, too: reading it is no faster in fewer bits."""
_SHARE = 1 / 40
"""A model that gets smaller by less is no smaller to speak of."""


def small_matrices(model: ir.Model, names: Collection[str]) -> dict[str, str]:
    """Those nodes of ``names`` that are better left in float, with the reason: heads of few classes, routers of experts.

    None are where the small ones come to something together.
    """
    found = {name: node for name, node in weight_only_nodes(model).items() if name in names}
    small = {name: node.weight for name, node in found.items() if math.prod(node.shape) < _SMALL}
    size = sum(weight.const_value.nbytes for weight in set(small.values()) if weight.const_value is not None)
    share = size / max(weight_bytes(model), 1)
    if share > _SHARE:
        return {}
    return dict.fromkeys(
        small,
        f"matrices this small hold {share:.1%} of the model together: too little to gain by; name one to quantize it",
    )
