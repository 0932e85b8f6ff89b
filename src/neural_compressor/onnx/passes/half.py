"""Conversion of float32 models to fp16 and bf16."""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from neural_compressor.dtypes import dtype as data_type
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.matrix_nodes import take_array
from neural_compressor.onnx.graph.queries import graph_of, input_of, is_constant, producer, standard, with_inner
from neural_compressor.onnx.runtime.kernels import Signature, has_kernel, signature

logger = logging.getLogger("neural_compressor")

_GROW = ("Pow", "Exp", "CumSum", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd")
_CARRY = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sum", "Mean", "Max", "Min", "Where", "ReduceMean", "ReduceMax"),
    *("ReduceMin", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Concat"),
)
"""Ops whose result may be as large as what they read."""
_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")
"""Ops that are worth computing in half whatever they read."""


def _beyond_fp16(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that had better compute in float32: powers and sums, which may overflow fp16, and what is made of them."""
    large: set[ir.Value] = set()
    bases: dict[ir.Value, ir.Value] = {}
    found = set()
    for node in graph:
        reads = any(value in large for value in node.inputs)
        grows = standard(node, *_GROW) or (standard(node, "Mul") and _is_power(node, bases))
        if grows or (reads and standard(node, *_CARRY)):
            large.update(node.outputs)
        if grows or (reads and not standard(node, *_PRODUCTS)):
            found.add(node)
    return found


def _is_power(product: ir.Node, bases: dict[ir.Value, ir.Value]) -> bool:
    """Whether a value is multiplied with itself, whatever the factors; ``bases`` has what others are multiples of."""
    factors = [value for value in product.inputs if value is not None and not is_constant(value)]
    distinct = {bases.get(value, value) for value in factors}
    if len(distinct) != 1:
        return False
    bases[product.outputs[0]] = distinct.pop()
    return not any(is_constant(value) for value in product.inputs)


_TARGETS = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
_FLOAT = ir.DataType.FLOAT
_LOOK_UPS = ("Gather", "GatherElements", "GatherND")
"""Ops that hand out parts of a matrix and do not compute with it."""
_LARGE = 1e6
"""Powers and sums of what models compute with come to this; bf16 goes farther, fp16 does not."""
_STAYS_FLOAT = ("QuantizeLinear", "DequantizeLinear")
"""Ops left alone, so that the runtime still sees the patterns it fuses."""


def half_precision(model: ir.Model, precision: str, names: Collection[str], provider: str) -> ir.Model:
    """``model`` with the nodes ``names`` in fp16 or bf16 where ``provider`` runs them so, and all others as they are."""
    others = [str(node.name) for node in model.graph.all_nodes() if node.name not in names]
    return to_half(model, precision, others, provider=provider)


def to_half(
    model: ir.Model,
    dtype: str,
    keep: Collection[str] = (),
    *,
    weights_only: bool = False,
    provider: str | None = None,
) -> ir.Model:
    """A new model that computes in fp16 or bf16, with inputs and outputs as they were; ``model`` is a normalised one.

    Ops that the target type is not defined for, those with subgraphs, those that the execution ``provider`` has no kernel
    for in that type, and the nodes named in ``keep`` stay in float32; so do, in fp16, powers and sums, which may be too
    large for it. ``weights_only`` stores matrices in the target type and computes in float32: half the size where a device,
    such as the CPU, has no kernels for the type. Weights too large for the type become its largest number.
    """
    conversion = _Conversion(model.clone(), check_half(dtype), frozenset(keep), provider)
    return conversion.weights() if weights_only else conversion.whole()


def check_half(dtype: str) -> str:
    """The name of a type that models are converted to.

    >>> check_half("float16")
    'fp16'
    """
    name = data_type(dtype).name
    if name not in _TARGETS:
        raise ConfigError(f"a model is converted to {' or '.join(_TARGETS)}, not to {name}")
    return name


def computes_in(model: ir.Model, dtype: str, provider: str) -> bool:
    """Whether ``provider`` has kernels in ``dtype`` for every op of ``model`` that computes with a matrix of it."""
    conversion = _Conversion(model, data_type(dtype).name, frozenset(), provider)
    matrices = [value for value in model.graph.initializers.values() if _is_matrix(value)]
    consumers = {node: None for value in matrices for node in value.consumers() if node.op_type not in _LOOK_UPS}
    types = {node: signature(node, model.opset_imports) for node in consumers}
    return all(found is not None and conversion.variables(node, found) for node, found in types.items())


def _is_matrix(value: ir.Value) -> bool:
    """Whether a value is a constant worth storing in half the bytes."""
    return value.dtype == _FLOAT and value.const_value is not None and len(value.const_value.shape) > 1


class _Conversion:
    def __init__(self, model: ir.Model, name: str, keep: frozenset[str], provider: str | None) -> None:
        self.model, self.keep, self.provider = model, keep, provider
        self.target, self.limit = _TARGETS[name], float(data_type(name).max)
        self.edit = GraphEditor(model)
        self._half: set[ir.Value] = set()
        self._other: dict[ir.Value, ir.Value] = {}

    def whole(self) -> ir.Model:
        """The model with all that can be converted."""
        too_large = _beyond_fp16(self.model.graph) if self.limit < _LARGE else set()
        for node in list(self.model.graph):
            types = signature(node, self.model.opset_imports)
            node_and_inner = list(with_inner(node))
            stays = node.name in self.keep or node.op_type in _STAYS_FLOAT or len(node_and_inner) > 1
            if types is None or node in too_large or stays:
                for consumer in node_and_inner:
                    self._read(consumer, node, frozenset(), None)
                continue
            self._fill_in(node, types)
            variables = self.variables(node, types)
            self._read(node, node, variables, types)
            for value, kind in zip(node.outputs, types.outputs, strict=True):
                if kind in variables:
                    value.type = ir.TensorType(self.target)
                    self._half.add(value)
        self._restore_outputs()
        return self.model

    def weights(self) -> ir.Model:
        """The model with matrices in the target type, each cast back before anything reads it."""
        first = next(iter(self.model.graph), None)
        for value in filter(_is_matrix, list(self.model.graph.initializers.values())):
            if first is None or any(consumer.name in self.keep for consumer in value.consumers()):
                continue
            floats = self.edit.insert(first, "Cast", [self._halved(value)], {"to": _FLOAT.value})[0]
            floats.type, floats.shape = value.type, value.shape
            value.replace_all_uses_with(floats, replace_graph_outputs=True)
            discard(value)
        return self.model

    def variables(self, node: ir.Node, types: Signature) -> frozenset[str]:
        """The type variables of a node that become half: those that stand for float32 wherever an input has them."""
        wanted = f"tensor({self.target.name.lower()})"
        bound: dict[str, list[bool]] = {}
        for value, kind in zip(node.inputs, types.inputs, strict=True):
            if value is not None and wanted in types.admitted.get(kind, ()):
                bound.setdefault(kind, []).append(self._was_float(value))
        found = frozenset(kind for kind, floats in bound.items() if all(floats))
        versions = self.model.opset_imports
        if self.provider is not None and not has_kernel(node, versions, self.provider, found, self.target):
            return frozenset()
        return found

    def _read(self, consumer: ir.Node, at: ir.Node, variables: frozenset[str], types: Signature | None) -> None:
        """Give ``consumer``, which runs at ``at`` in the main graph, its inputs in the types it now takes."""
        for place, value in enumerate(consumer.inputs):
            wants_half = types is not None and types.inputs[place] in variables
            if value is not None and self._was_float(value) and wants_half != (value in self._half):
                if value not in self._other:
                    self._other[value] = self._as_other(value, at)
                consumer.replace_input_with(place, self._other[value])
                discard(value)

    def _was_float(self, value: ir.Value) -> bool:
        return value in self._half or (isinstance(value.type, ir.TensorType) and value.dtype == _FLOAT)

    def _as_other(self, value: ir.Value, at: ir.Node) -> ir.Value:
        """A float32 value as half, or the other way round."""
        if value.is_initializer() and not value.is_graph_input():
            return self._halved(value)
        kind, source = (_FLOAT if value in self._half else self.target), value
        if value not in self._half and (maker := producer(value, "Cast")) is not None:
            source = input_of(maker, 0)
        cast = self.edit.insert(at, "Cast", [source], {"to": kind.value})[0]
        cast.type, cast.shape = ir.TensorType(kind), value.shape
        return cast

    def _halved(self, value: ir.Value) -> ir.Value:
        """A weight in the target type, converted when it is read."""
        name = value.name
        assert value.const_value is not None

        def convert() -> ir.TensorProtocol:
            array = take_array(value)
            beyond = (np.abs(array) > self.limit) & np.isfinite(array)
            if beyond.any():
                logger.warning("%s: values beyond %g were set to that", name, self.limit)
                array[beyond] = np.copysign(self.limit, array[beyond])
            return ir.tensor(array.astype(self.target.numpy()), name=f"{name}_half")

        shape = ir.Shape(value.const_value.shape.numpy())
        return self.edit.weight(f"{value.name}_half", ir.LazyTensor(convert, self.target, shape), graph_of(value))

    def _fill_in(self, node: ir.Node, types: Signature) -> None:
        """The types of outputs that inference did not know, those of the runtime's own operators."""
        known = {kind: v.type for v, kind in zip(node.inputs, types.inputs, strict=True) if v is not None and v.type}
        for value, kind in zip(node.outputs, types.outputs, strict=True):
            if value.type is None:
                value.type = ir.TensorType(_FLOAT) if kind == "tensor(float)" else known.get(kind)

    def _restore_outputs(self) -> None:
        graph = self.model.graph
        for place, value in enumerate(graph.outputs):
            if value in self._half:
                cast = ir.node("Cast", [value], {"to": _FLOAT.value}, name=self.edit.fresh(f"{value.name}_Cast"))
                cast.outputs[0].name, value.name = value.name, self.edit.fresh(f"{value.name}_half")
                cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(_FLOAT), value.shape
                graph.append(cast)
                graph.outputs[place] = cast.outputs[0]
