"""The graph in a float LiteRT file: its ops and tensors, with names that are unique."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from ai_edge_litert.tools import flatbuffer_utils

from neural_compressor.errors import FormatError
from neural_compressor.schemes.packing import pack_bits

MOVING = (
    *("RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "PAD", "MAX_POOL_2D", "STRIDED_SLICE", "SLICE", "GATHER"),
    *("SPACE_TO_DEPTH", "SPLIT", "UNPACK", "RESIZE_NEAREST_NEIGHBOR"),
)
"""Ops whose outputs are values of their input, in its scale."""


@dataclass(frozen=True)
class LiteOp:
    """An op of the main graph; ``inputs`` are the tensors that it computes, by index, and not constants."""

    index: int
    kind: str
    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int, ...]


class LiteGraph:
    """The main graph of a LiteRT file.

    ``names`` are those of the file; in :meth:`content` each tensor has one of its own, as the quantizer demands.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
            self._graph = self._model.subgraphs[0]
        except Exception as error:  # whatever a parser of bytes that are no model may raise
            raise FormatError(f"the bytes are no LiteRT model: {type(error).__name__}: {error}") from error
        self.names: list[str] = [_text(tensor.name) for tensor in self._graph.tensors]

    @cached_property
    def ops(self) -> list[LiteOp]:
        """The ops, in the order they run."""
        return self.ops_in(0)

    def ops_in(self, graph: int) -> list[LiteOp]:
        """The ops of one of the graphs: the main one is the first, others are bodies of loops and conditions."""
        found = []
        for index, op in enumerate(self._model.subgraphs[graph].operators):
            given = [int(each) for each in op.inputs if each != -1]
            constants = tuple(each for each in given if self.constant(each, graph) is not None)
            inputs = tuple(each for each in given if each not in constants)
            kind = flatbuffer_utils.opcode_to_name(self._model, op.opcodeIndex)
            found.append(LiteOp(index, kind, inputs, constants, tuple(int(each) for each in op.outputs)))
        return found

    @property
    def subgraphs(self) -> int:
        """How many graphs the file has: bodies of loops and conditions are graphs too."""
        return len(self._model.subgraphs)

    @property
    def inputs(self) -> list[int]:
        """The tensors that the graph is given."""
        return [int(each) for each in self._graph.inputs]

    @property
    def outputs(self) -> list[int]:
        """The tensors that the graph gives."""
        return [int(each) for each in self._graph.outputs]

    @cached_property
    def producers(self) -> dict[int, LiteOp]:
        """The op that computes each tensor."""
        return {tensor: op for op in self.ops for tensor in op.outputs}

    def is_float(self, tensor: int, graph: int = 0) -> bool:
        """Whether a tensor holds float32."""
        return bool(self._model.subgraphs[graph].tensors[tensor].type == flatbuffer_utils.TensorType.FLOAT32)

    def shape(self, tensor: int, graph: int = 0) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(int(size) for size in self._model.subgraphs[graph].tensors[tensor].shape)

    def constant(self, tensor: int, graph: int = 0) -> np.ndarray[Any, Any] | None:
        """The value of a constant; None of tensors that are computed. Other types than float32 are given as bytes."""
        each = self._model.subgraphs[graph].tensors[tensor]
        data = self._model.buffers[each.buffer].data
        if data is None or len(data) == 0:
            return None
        raw = np.frombuffer(bytes(data), np.uint8)
        return raw.view(np.float32).reshape(self.shape(tensor, graph)) if self.is_float(tensor, graph) else raw

    def read(self, tensor: int) -> np.ndarray[Any, Any]:
        """The floats that a constant stands for, be it stored in integers."""
        value = self.constant(tensor)
        assert value is not None
        if self.is_float(tensor):
            return value
        each = self._graph.tensors[tensor]
        shape = self.shape(tensor)
        integers = _INTEGERS[each.type](value)[: int(np.prod(shape))].reshape(shape).astype(np.float32)
        scales = np.asarray(each.quantization.scale, np.float32)
        zeros = np.asarray(each.quantization.zeroPoint, np.float32)
        by_channel = [1] * integers.ndim
        if scales.size > 1:
            by_channel[each.quantization.quantizedDimension] = scales.size
        return np.asarray((integers - zeros.reshape(by_channel)) * scales.reshape(by_channel))

    def has_scale(self, tensor: int) -> bool:
        """Whether a constant holds integers that stand for floats."""
        each = self._graph.tensors[tensor]
        known = each.quantization is not None and each.quantization.scale is not None
        return known and len(each.quantization.scale) > 0 and each.type in _INTEGERS

    def set_constant(self, tensor: int, value: Any) -> None:
        """Give a constant of floats another value; others that have its bytes keep theirs."""
        buffer = flatbuffer_utils.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(value, np.float32).tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        self._graph.tensors[tensor].buffer = len(self._model.buffers) - 1

    def separate_vectors(self) -> None:
        """Give each op the constant vectors of floats that it reads, biases that is, as constants of its own.

        The converter has ops without a bias read one vector of zeros.
        """
        taken: set[int] = set()
        for op in self._graph.operators:
            for place, tensor in enumerate(int(each) for each in op.inputs):
                value = self.constant(tensor) if tensor != -1 and len(self.shape(tensor)) == 1 else None
                if tensor in taken and value is not None and self.is_float(tensor):
                    self._graph.tensors.append(copy.copy(self._graph.tensors[tensor]))
                    self.names.append(self.names[tensor])
                    op.inputs = [*op.inputs[:place], len(self.names) - 1, *op.inputs[place + 1 :]]
                    self.set_constant(len(self.names) - 1, value)
                taken.add(tensor)

    def options(self, op: LiteOp) -> Any:
        """What the file says of an op: strides, padding, the activation fused into it."""
        return self._graph.operators[op.index].builtinOptions

    def weight(self, op: LiteOp, graph: int = 0) -> int | None:
        """The constant that an op multiplies with: its first one of floats with more than one axis."""
        floats = [t for t in op.constants if self.is_float(t, graph) and len(self.shape(t, graph)) > 1]
        return floats[0] if floats else None

    def name(self, tensor: int, graph: int = 0) -> str:
        """The name of a tensor in the file."""
        return _text(self._model.subgraphs[graph].tensors[tensor].name)

    def unique_name(self, tensor: int, graph: int = 0) -> str:
        """A name that no other tensor has."""
        return f"{_prefix(graph, tensor)}{self.name(tensor, graph)}"

    def written(self) -> bytes:
        """The file as it is now."""
        return self.bytes_of(self._model)

    def model_copy(self) -> Any:
        """What the file holds as objects, to be changed."""
        return copy.deepcopy(self._model)

    @staticmethod
    def bytes_of(model: Any) -> bytes:
        """A model in memory as a file; what no tensor holds any more is left out of it."""
        used = {int(tensor.buffer) for graph in model.subgraphs for tensor in graph.tensors}
        used |= {int(each.buffer) for each in model.metadata or ()}
        for place, buffer in enumerate(model.buffers):
            if place not in used:
                buffer.data = None
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model))

    def content(self) -> bytes:
        """The file as the quantizer takes it: with unique names, and without :attr:`hidden` outputs."""
        model = copy.deepcopy(self._model)
        for number, graph in enumerate(model.subgraphs):
            for index, tensor in enumerate(graph.tensors):
                tensor.name = f"{_prefix(number, index)}{_text(tensor.name)}".encode()
        hidden = set(self.hidden)
        model.subgraphs[0].outputs = [tensor for tensor in self.outputs if tensor not in hidden]
        for signature in model.signatureDefs or ():
            signature.outputs = [each for each in signature.outputs if int(each.tensorIndex) not in hidden]
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model))

    @property
    def hidden(self) -> list[int]:
        """Outputs that ops of the graph read, too: the quantizer mistakes what these read for what is given out."""
        read = {tensor for op in self.ops for tensor in op.inputs}
        return [tensor for tensor in self.outputs if tensor in read]

    def finished(self, content: bytes) -> bytes:
        """What the quantizer made of :meth:`content`, with names as they were and every output."""
        model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
        graph = model.subgraphs[0]
        places = {_text(tensor.name): index for index, tensor in enumerate(graph.tensors)}
        outputs = [int(tensor) for tensor in graph.outputs]
        for tensor in self.hidden:
            given = _in_float(model, places[self.unique_name(tensor)])
            outputs.insert(self.outputs.index(tensor), given)
            for signature, original in zip(model.signatureDefs or (), self._model.signatureDefs or (), strict=True):
                named = [copy.copy(each) for each in original.outputs if int(each.tensorIndex) == tensor]
                for each in named:
                    each.tensorIndex = given
                signature.outputs = [*signature.outputs, *named]
        graph.outputs = outputs
        for number, each in enumerate(model.subgraphs):
            pattern = re.compile(r"^\d+:" if number == 0 else rf"^{number}/\d+:")
            for tensor in each.tensors:
                tensor.name = pattern.sub("", _text(tensor.name), count=1).encode()
        return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _in_float(model: Any, tensor: int) -> int:
    """The tensor that holds the floats that ``tensor`` stands for: itself, or what is dequantized of it."""
    graph = model.subgraphs[0]
    if graph.tensors[tensor].type == flatbuffer_utils.TensorType.FLOAT32:
        return tensor
    for op in graph.operators:
        kind = flatbuffer_utils.opcode_to_name(model, op.opcodeIndex)
        if kind == "DEQUANTIZE" and int(op.inputs[0]) == tensor:
            return int(op.outputs[0])
    new = copy.copy(graph.tensors[tensor])
    new.type, new.quantization, new.buffer = flatbuffer_utils.TensorType.FLOAT32, None, 0
    new.name = new.name + b"_float"
    graph.tensors.append(new)
    graph.operators.append(new_op(model, "DEQUANTIZE", [tensor], [len(graph.tensors) - 1], 2))
    return len(graph.tensors) - 1


def new_op(model: Any, kind: str, inputs: list[int], outputs: list[int], version: int = 1) -> Any:
    """An operator for a graph of ``model``, whose table of operators then has one of this kind and version."""
    code = getattr(flatbuffer_utils.BuiltinOperator, kind)
    known = [(each.builtinCode, each.version) for each in model.operatorCodes]
    if (code, version) not in known:
        added = flatbuffer_utils.OperatorCodeT()
        added.builtinCode, added.deprecatedBuiltinCode, added.version = code, min(code, 127), version
        model.operatorCodes.append(added)
        known.append((code, version))
    op = flatbuffer_utils.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = known.index((code, version)), inputs, outputs
    return op


def new_constant(
    model: Any, graph: Any, name: str, values: Any, kind: Any, parameters: tuple[Any, Any, int] | None = None
) -> int:
    """The place of a new tensor with ``values`` in a ``graph`` of ``model``; ``parameters``: scale, zero point, axis."""
    tensor, buffer = flatbuffer_utils.TensorT(), flatbuffer_utils.BufferT()
    tensor.name, tensor.shape, tensor.type = name.encode(), list(values.shape), kind
    flat = np.ascontiguousarray(values).reshape(-1)
    buffer.data = (pack_bits(flat, 4) if kind == flatbuffer_utils.TensorType.INT4 else flat).view(np.uint8)
    model.buffers.append(buffer)
    tensor.buffer = len(model.buffers) - 1
    if parameters is not None:
        tensor.quantization = flatbuffer_utils.QuantizationParametersT()
        scale, zero, tensor.quantization.quantizedDimension = parameters
        tensor.quantization.scale = np.asarray(scale, np.float32)
        tensor.quantization.zeroPoint = np.asarray(zero, np.int64)
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def op_kinds(content: bytes) -> list[str]:
    """The ops of a file, by name, in the order they run."""
    return [op.kind for op in LiteGraph(content).ops]


def _nibbles(raw: Any) -> Any:
    """Integers of 4 bits, two a byte, the lower half first; of an odd number the last half is empty."""
    both = np.stack([raw.view(np.int8) << 4 >> 4, raw.view(np.int8) >> 4], axis=-1)
    return both.reshape(-1)


_INTEGERS: dict[int, Any] = {
    flatbuffer_utils.TensorType.INT8: lambda raw: raw.view(np.int8),
    flatbuffer_utils.TensorType.INT16: lambda raw: raw.view(np.int16),
    flatbuffer_utils.TensorType.INT32: lambda raw: raw.view(np.int32),
    flatbuffer_utils.TensorType.INT64: lambda raw: raw.view(np.int64),
    flatbuffer_utils.TensorType.UINT8: lambda raw: raw,
    flatbuffer_utils.TensorType.INT4: _nibbles,
}
"""How the bytes of a constant are read as integers."""


def _prefix(graph: int, tensor: int) -> str:
    return f"{tensor}:" if graph == 0 else f"{graph}/{tensor}:"


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
