"""Weights of data types that no kernel multiplies with: codes in the file, floats in the product.

Codes are digits, as many to a byte as there is room for, and a table has the values of each byte's codes:
``weight = Gather(values, bytes) * scale``. ONNX Runtime computes that when it loads the model, which then runs as the float
model does. A DequantizeLinear, which has float8 types, it computes at each run: that is for models in QDQ form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms.checks import group_size
from neural_compressor.dtypes import DType
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode
from neural_compressor.onnx.graph.queries import graph_of
from neural_compressor.onnx.methods.weight_only.blockwise import check_block, runs_in_kernel
from neural_compressor.onnx.runtime.kernels import has_kernel
from neural_compressor.schemes import OpKey, OpScheme, QuantizedArray, TensorScheme
from neural_compressor.schemes.grid import encode

_BYTE = 256
_NODES = 700
"""About what the nodes that decode a weight, and their values, take in a file."""
_FLOATS = {
    ir.DataType.FLOAT8E4M3FN: (21, 10),
    ir.DataType.FLOAT8E5M2: (21, 10),
    ir.DataType.FLOAT4E2M1: (23, 11),
}
"""The small floats of ONNX, with the first opset and IR version that dequantize them in blocks."""


def check_weight(scheme: TensorScheme, inputs: int | None = None) -> None:
    """Refuse a weight that cannot be stored, of so many ``inputs`` where that is known."""
    kind = scheme.dtype
    if scheme.is_float:
        raise ConfigError(f"{kind.name} needs no scales: convert_precision stores weights in it")
    if kind.bits > 8:
        raise ConfigError(
            f"weights are stored in 1 to 8 bits, and {kind.name} has {kind.bits}; fp16 or bf16 take no more"
        )
    if not (scheme.symmetric or kind.is_integer):
        raise ConfigError(
            f"{kind.name} has no zero points, which only integers have; use a symmetric scheme, and not HQQ"
        )
    if scheme.scales is not None or scheme.zeros is not None:
        raise ConfigError("ONNX Runtime takes scales as floats; leave double quantization out")
    if runs_in_kernel(kind) and inputs is not None:
        check_block(group_size(scheme, inputs), inputs)


def simulated_ops(ops: Mapping[OpKey, OpScheme], quant_format: str, provider: str) -> dict[OpKey, str]:
    """Those weight-only ``ops`` that are computed in float, with the reason."""
    weights = {key: scheme.weight for key, scheme in ops.items() if scheme.mode == "weight_only"}
    # A table that is dequantized before it is looked up would be dequantized whole each time.
    forms = {key: "QOperator" if key[1] == "Gather" else quant_format for key in weights}
    found = {key: why_simulated(weight, forms[key], provider) for key, weight in weights.items() if weight is not None}
    return {key: why for key, why in found.items() if why}


def why_simulated(scheme: TensorScheme, quant_format: str, provider: str = "CPUExecutionProvider") -> str:
    """Why products with such a weight are computed in float; empty where a kernel takes its codes.

    >>> from neural_compressor.dtypes import dtype
    >>> why_simulated(TensorScheme(dtype("int3")), "QOperator")
    ''
    >>> why_simulated(TensorScheme(dtype("nf4")), "QDQ")
    'no kernel multiplies with nf4: its codes become floats when the model is loaded'
    """
    if runs_in_kernel(scheme.dtype):
        return ""
    at_each_run = quant_format == "QDQ" and onnx_float(scheme.dtype, provider) is not None
    when = "at each run, as DequantizeLinear does it" if at_each_run else "when the model is loaded"
    return f"no kernel multiplies with {scheme.dtype.name}: its codes become floats {when}"


@cache
def onnx_float(kind: DType, provider: str) -> ir.DataType | None:
    """The type of ONNX whose codes stand for what those of ``kind`` do, where the provider dequantizes it."""
    for found, (opset, _) in _FLOATS.items():
        if kind.bits != found.bitwidth or not np.array_equal(_values(kind.element_type), _values(found)):
            continue
        types = {"codes": found, "scale": ir.DataType.FLOAT}
        inputs = [ir.Value(name=name, type=ir.TensorType(each)) for name, each in types.items()]
        node = ir.node("DequantizeLinear", inputs)
        return found if has_kernel(node, {"": opset}, provider, ("T1",), found) else None
    return None


def dequantizer_versions(kind: DType, provider: str) -> tuple[int, int]:
    """The first opset and IR version with a DequantizeLinear for ``kind``; zeros where none is written."""
    if runs_in_kernel(kind):
        return (25, 13) if kind.bits <= 2 else (21, 10)
    found = onnx_float(kind, provider)
    return (0, 0) if found is None else _FLOATS[found]


class Decoder:
    """Puts quantized weights into a graph as nodes that make floats of their codes; weights of a type share its table."""

    def __init__(self, edit: GraphEditor) -> None:
        self.edit = edit
        self._tables: dict[tuple[ir.Graph, DType], ir.Value] = {}

    def decoded(self, consumers: Sequence[MatrixNode], array: QuantizedArray) -> ir.Value:
        """The weight as ``consumers`` multiply with it, (inputs, outputs), or (entries, width) where they look it up.

        What would take no fewer bytes as codes is a constant in float.
        """
        first, kind = consumers[0], array.scheme.dtype
        graph, name = graph_of(first.weight), str(first.weight.name)
        is_table, to = first.is_table, first.dtype
        if _stored_bytes(array) + _NODES >= math.prod(array.shape) * to.itemsize:
            floats = np.asarray(array.dequantize())
            floats = (floats if is_table else floats.T).astype(to.numpy())
            return self.edit.weight(f"{name}_{kind.name}", floats, graph)
        together = all(node.node.graph is graph for node in consumers)
        # What bodies of an If or Loop read as well is made before all of them.
        before = first.node if together else graph[0]
        (rows, columns), size = array.shape, group_size(array.scheme, array.shape[1])
        groups = -(-columns // size)
        codes = np.pad(np.asarray(array.codes), ((0, 0), (0, groups * size - columns)))
        value = self._look_up(before, f"{name}_{kind.name}", codes, kind.element_type, (rows, groups, size))
        value = self._insert(before, "Mul", value, self._scales(before, name, array, groups))
        value = self._insert(before, "Reshape", value, [rows, groups * size])
        if groups * size > columns:
            value = self._insert(before, "Slice", value, [0], [columns], [1])
        if not is_table:
            value = self.edit.insert(before, "Transpose", [value], {"perm": [1, 0]})[0]
        if to != ir.DataType.FLOAT:
            value = self.edit.insert(before, "Cast", [value], {"to": to.value})[0]
        value.type, value.shape = ir.TensorType(to), ir.Shape(array.shape if is_table else array.shape[::-1])
        return value

    def _scales(self, before: ir.Node, name: str, array: QuantizedArray, groups: int) -> ir.Value:
        """Scales that go with values in (rows, groups, values of a group): as codes, too, where the type has some."""
        kind, scale = array.scheme.dtype.scale_type, np.asarray(array.scale).reshape(-1, groups, 1)
        factor = None if array.tensor_scale is None else np.asarray(array.tensor_scale, np.float32)
        if kind is None:
            whole = scale if factor is None else scale * factor
            return self.edit.weight(f"{name}_scales", whole.astype(np.float32), graph_of(before))
        value = self._look_up(before, f"{name}_scales", np.asarray(encode(scale, kind)), kind, scale.shape)
        if factor is None:
            return value
        return self._insert(before, "Mul", value, self.edit.weight(f"{name}_tensor_scale", factor, graph_of(before)))

    def _look_up(self, before: ir.Node, name: str, codes: np.ndarray, kind: DType, shape: tuple[int, ...]) -> ir.Value:
        """The values of ``codes``, in ``shape``."""
        graph = graph_of(before)
        if (graph, kind) not in self._tables:
            self._tables[graph, kind] = self.edit.weight(f"{kind.name}_values", _byte_values(kind), graph)
        packed = self.edit.weight(name, _packed(codes, kind), graph)
        places = self.edit.insert(before, "Cast", [packed], {"to": ir.DataType.INT32.value})[0]
        value = self._insert(before, "Gather", self._tables[graph, kind], places)
        if math.prod(shape) % _digits(kind):
            value = self._insert(before, "Reshape", value, [-1])
            value = self._insert(before, "Slice", value, [0], [math.prod(shape)], [0])
        return self._insert(before, "Reshape", value, list(shape))

    def _insert(self, before: ir.Node, op_type: str, *inputs: ir.Value | list[int]) -> ir.Value:
        """The result of a new node ahead of ``before``; integers among its inputs become a constant."""
        name = f"{before.name}_{'shape' if op_type == 'Reshape' else 'cut'}"
        operands = [
            self.edit.weight(name, np.asarray(each, np.int64), graph_of(before)) if isinstance(each, list) else each
            for each in inputs
        ]
        return self.edit.insert(before, op_type, operands)[0]


def _stored_bytes(array: QuantizedArray) -> int:
    kind = array.scheme.dtype
    scale = np.asarray(array.scale)
    codes = -(-math.prod(array.shape) // _digits(kind.element_type))
    return codes + scale.size * (4 if kind.scale_type is None else 1) + _byte_values(kind.element_type).nbytes


def _digits(kind: DType) -> int:
    """How many codes a byte has room for: with n values, as many digits of base n as stay below 256."""
    count, base = 1, max(len(kind.code_values), 2)
    while base ** (count + 1) <= _BYTE:
        count += 1
    return count


def _packed(codes: np.ndarray, kind: DType) -> np.ndarray:
    """Codes as digits of bytes, the first of a byte the lowest."""
    digits, base = _digits(kind), len(kind.code_values)
    patterns = codes.reshape(-1).astype(np.uint8) & np.uint8((1 << kind.bits) - 1)
    filled = np.pad(patterns, (0, -len(patterns) % digits)).reshape(-1, digits)
    return sum((filled[:, place] * np.uint8(base**place) for place in range(1, digits)), filled[:, 0])


def _byte_values(kind: DType) -> np.ndarray:
    """The values (bytes, digits) of each byte that :func:`_packed` makes."""
    digits, base = _digits(kind), len(kind.code_values)
    places = np.arange(base**digits)[:, None] // base ** np.arange(digits) % base
    return _values(kind)[places]


def _values(kind: DType | ir.DataType) -> np.ndarray:
    """What the codes 0, 1, ... stand for; 0 for those that no number has."""
    if isinstance(kind, ir.DataType):
        values = np.arange(1 << kind.bitwidth, dtype=np.uint8).view(kind.numpy()).astype(np.float32)
    else:
        values = np.asarray(kind.code_values, np.float32)
    return np.where(np.isfinite(values), values, 0).astype(np.float32)
