"""The ops of a Keras graph: which can be quantized, why others cannot, and their weights as matrices of the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpKey
from neural_compressor.tensorflow.float_graph import Call
from neural_compressor.tensorflow.structure.trace import is_composite, nodes_of

Array = np.ndarray[Any, Any]

CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D")
DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")
TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
RECURRENT = ("LSTM", "GRU")
WEIGHTED = ("Dense", "EinsumDense", *CONVOLUTIONS, *DEPTHWISE, *TRANSPOSED, "Embedding", *RECURRENT)
MAX_POOLS = tuple(f"{prefix}MaxPooling{n}D" for prefix in ("", "Global") for n in (1, 2, 3))
AVERAGE_POOLS = tuple(f"AveragePooling{n}D" for n in (1, 2, 3))
GLOBAL_AVERAGE_POOLS = tuple(f"GlobalAveragePooling{n}D" for n in (1, 2, 3))
PRODUCTS = ("Einsum", "Matmul")
"""Products of two computed tensors, as attention has them."""
UNWEIGHTED = ("Add", "Concatenate", *PRODUCTS, *MAX_POOLS, *AVERAGE_POOLS, *GLOBAL_AVERAGE_POOLS)
MOVING = ("Flatten", "Reshape", "Permute", "Transpose", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D",
          "Cropping2D", "Cropping3D", "Squeeze", "ExpandDims", *MAX_POOLS)  # fmt: skip
"""Ops whose outputs are values of their input (or zero): they need no range of their own."""
ONE_SCALE = ("Concatenate", *AVERAGE_POOLS)
"""Ops whose integer kernels want inputs and output in one scale."""
FUSED_ACTIVATIONS = ("relu", "relu6")
_IGNORED = ("InputLayer", "Activation", "ReLU", "Relu", "Relu6", "GetItem", "Cast", *MOVING)


def type_of(operation: Any) -> str:
    """The op type, as the framework YAML has it: the class of a layer or operation."""
    return type(operation).__name__


def is_activation(operation: Any, names: tuple[str, ...] = FUSED_ACTIVATIONS) -> bool:
    """Whether ``operation`` is one of the activation functions ``names``."""
    kind = type_of(operation)
    if kind == "Activation":
        return getattr(operation.activation, "__name__", "") in names
    if kind == "ReLU":
        plain = not operation.negative_slope and not operation.threshold
        return plain and {None: "relu", 6.0: "relu6"}.get(operation.max_value, "") in names
    return kind.lower() in names


class Graph:
    """A functional ``model`` with its nodes in the order they run; ops go by the names of their operations."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.nodes: list[Any] = nodes_of(model)
        self._outputs = {id(tensor) for tensor in model.outputs}
        self._uses: dict[int, list[Any]] = {}
        self._calls: dict[int, list[Any]] = {}
        for node in self.nodes:
            self._calls.setdefault(id(node.operation), []).append(node)
            for tensor in node.input_tensors:
                self._uses.setdefault(id(tensor), []).append(node)

    def consumers(self, tensor: Any) -> list[Any]:
        """The nodes that read a tensor."""
        return self._uses.get(id(tensor), [])

    def only_consumer(self, tensor: Any) -> Any:
        """The node that reads a tensor, where no other does and the model does not give it out."""
        found = self.consumers(tensor)
        return found[0] if len(found) == 1 and id(tensor) not in self._outputs else None

    def calls(self, operation: Any) -> list[Any]:
        """The nodes of an operation."""
        return self._calls.get(id(operation), [])

    def fused_end(self, node: Any) -> Any:
        """The node whose output is that of ``node`` with the activation that a kernel applies with it."""
        following = self.only_consumer(node.outputs[0])
        return following if following is not None and is_activation(following.operation) else node

    def ops(self) -> dict[OpKey, Any]:
        """The operations that can be quantized, by name and type, in the order they run."""
        return {(op.name, type_of(op)): op for op in self._operations() if reason_for_float(op, self) is None}

    def skipped(self) -> dict[OpKey, str]:
        """Why other operations cannot be quantized; those that only move values or are parts of ops are left out."""
        found = {(op.name, type_of(op)): reason_for_float(op, self) for op in self._operations()}
        return {key: why for key, why in found.items() if why is not None and key[1] not in _IGNORED}

    def sequence(self) -> list[Call]:
        """The nodes, with tensors by identity."""
        return [self._call(node) for node in self.nodes]

    def calls_of(self, operation: Any) -> list[Call]:
        """The nodes of an operation, as :meth:`sequence` has them."""
        return [self._call(node) for node in self.calls(operation)]

    def _call(self, node: Any) -> Call:
        kind = type_of(node.operation)
        floats = tuple(id(t) for t in node.input_tensors if str(t.dtype).startswith("float"))
        outputs = tuple(id(t) for t in node.outputs)
        end = id(self.fused_end(node).outputs[0])
        return Call(id(node), node.operation.name, floats, outputs, end, kind in MOVING, kind in ONE_SCALE)

    def tensor_names(self) -> dict[int, str]:
        """What the tensors are called, by identity: the operation, and which call and output of it."""
        found = {id(tensor): f"input{number}" for number, tensor in enumerate(self.model.inputs)}
        for operation in self._operations():
            for call, node in enumerate(self.calls(operation)):
                for output, tensor in enumerate(node.outputs):
                    extra = f".{call}.{output}" if call or output else ""
                    found[id(tensor)] = f"{operation.name}{extra}"
        return found

    def _operations(self) -> list[Any]:
        return list({id(node.operation): node.operation for node in self.nodes}.values())


def reason_for_float(operation: Any, graph: Graph) -> str | None:
    """Why an operation cannot be quantized; None where it can."""
    kind = type_of(operation)
    if not type(operation).__module__.startswith("keras."):
        return f"a class of its own ({type(operation).__module__}.{kind}), of which nobody knows what it computes"
    if kind not in (*WEIGHTED, *UNWEIGHTED):
        if is_composite(operation):
            return f"{kind} has layers inside that could not be traced with symbolic tensors"
        return f"no runtime has a quantized {kind}"
    nodes = graph.calls(operation)
    if any(not str(tensor.dtype).startswith("float32") for node in nodes for tensor in node.outputs):
        return f"it computes in {nodes[0].outputs[0].dtype}, and quantization starts from float32"
    if kind in ("Add", "Concatenate", *PRODUCTS) and any(len(node.input_tensors) < 2 for node in nodes):
        return "one of its operands is a constant"
    if kind == "Einsum" and any(len(node.input_tensors) > 2 for node in nodes):
        return "it multiplies more than two tensors"
    if getattr(operation, "lora_enabled", False):
        return "it has LoRA weights beside its kernel; merge them first"
    if kind in WEIGHTED and getattr(operation, "quantization_mode", None):
        return f"Keras has quantized it already ({operation.quantization_mode})"
    return None


@dataclass(frozen=True)
class WeightView:
    """A weight of a layer as the matrix (outputs, inputs) that the core quantizes, and back."""

    variable: Any
    order: tuple[int, ...]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        dims = [self.variable.shape[axis] for axis in self.order]
        return int(np.prod(dims[: self.rows])), int(np.prod(dims[self.rows :]))

    def matrix(self) -> Array:
        """The weight, one row an output."""
        array = np.asarray(self.variable.numpy(), np.float32)
        return np.ascontiguousarray(array.transpose(self.order).reshape(self.shape))

    def restored(self, matrix: Array) -> Array:
        """``matrix`` in the layout of the layer."""
        dims = [self.variable.shape[axis] for axis in self.order]
        return np.asarray(matrix, np.float32).reshape(dims).transpose(np.argsort(self.order))

    def assign(self, matrix: Array) -> None:
        """Put ``matrix`` into the layer."""
        self.variable.assign(self.restored(matrix))


def weights_of(layer: Any) -> dict[str, WeightView]:
    """The weights of a layer that are quantized, by the name of the tensor."""
    kind = type_of(layer)
    if kind == "Embedding":
        return {"embeddings": WeightView(layer.embeddings, (0, 1), 1)}
    if kind in RECURRENT:
        cell = layer.cell
        return {name: WeightView(getattr(cell, name), (1, 0), 1) for name in ("kernel", "recurrent_kernel")}
    if kind not in WEIGHTED:
        return {}
    kernel = layer.kernel
    axes = tuple(range(len(kernel.shape)))
    if kind == "EinsumDense":
        return {"kernel": WeightView(kernel, *_einsum_order(layer.equation, len(axes)))}
    if kind in DEPTHWISE:
        return {"kernel": WeightView(kernel, (*axes[-2:], *axes[:-2]), 2)}
    channel = axes[-2] if kind in TRANSPOSED else axes[-1]
    return {"kernel": WeightView(kernel, (channel, *(axis for axis in axes if axis != channel)), 1)}


def einsum_letters(equation: str) -> tuple[str, str, str]:
    """The letters of the axes of the input, the kernel and the output in the equation of an ``EinsumDense``.

    >>> einsum_letters("...x,xy->...y")
    ('x', 'xy', 'y')
    """
    inputs, output = equation.replace(" ", "").replace("...", "").split("->")
    given, kernel = inputs.split(",")
    return given, kernel, output


def _einsum_order(equation: str, rank: int) -> tuple[tuple[int, ...], int]:
    """The axes of a kernel that the output has, then those summed over, and how many the first are."""
    _, letters, output = einsum_letters(equation)
    if len(letters) != rank:
        raise QuantizationError(f"the equation {equation!r} does not fit a kernel of {rank} axes")
    kept = [axis for axis, letter in enumerate(letters) if letter in output]
    summed = [axis for axis, letter in enumerate(letters) if letter not in output]
    return (*kept, *summed), len(kept)


def axes_of_range(layer: Any, rank: int) -> tuple[int, ...]:
    """The axes of an input that share one range where it is taken at run time, as LiteRT's kernels do: those that a
    product sums over, and all of a sample for convolutions."""
    kind = type_of(layer)
    if kind == "EinsumDense":
        letters, kernel, output = einsum_letters(layer.equation)
        summed = [place - len(letters) for place, each in enumerate(letters) if each in kernel and each not in output]
        return tuple(rank + place for place in summed)
    return (rank - 1,) if kind in ("Dense", *RECURRENT) else tuple(range(1, rank))


def bias_of(layer: Any) -> Any:
    """The bias variable of a layer, or None."""
    return getattr(layer, "bias", None) if isinstance(layer, keras.Layer) else None
