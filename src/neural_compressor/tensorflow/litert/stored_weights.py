"""Weights of a LiteRT file stored in few bits.

Kernels read them as they are and round their float inputs to int8 with ranges taken at run time (dynamic), or DEQUANTIZE
makes floats of them and the op computes in float (weight-only, fp16). That op reads any axis of scales and any zero point,
so that a weight with a scale a group is stored as a matrix of groups. Codes are ours; nothing is rounded again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert.tools import flatbuffer_utils

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, PerChannel, PerGroup, PerTensor, QuantizedArray, TensorScheme
from neural_compressor.schemes.ranges import scale_shape
from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, new_constant, new_op

Array = np.ndarray[Any, Any]
_KERNELS = {
    "FULLY_CONNECTED": (4, 8),
    "CONV_2D": (4, 8),
    "DEPTHWISE_CONV_2D": (8,),
    "TRANSPOSE_CONV": (8,),
    "BATCH_MATMUL": (8,),
}
"""The bits of weights that kernels multiply with inputs they round themselves."""
_LAYOUTS = {"DEPTHWISE_CONV_2D": (3, 0, 1, 2), "CONV_3D": (4, 0, 1, 2, 3), "CONV_3D_TRANSPOSE": (3, 0, 1, 2, 4)}
"""The axes of a weight in a file in the order of ours: outputs first."""
_DEQUANTIZE_VERSION = 6
_TYPES = flatbuffer_utils.TensorType


@dataclass(frozen=True)
class StoredWeight:
    """A weight and how it is stored: ``name`` is the unique one of its tensor in the main graph or in ``graph``.

    The matrix of ``array`` is the tensor with its axes in ``order``, reshaped. ``array`` None stores its floats
    in fp16. ``integer`` says that kernels read the codes; ``columns`` is what the columns are divided by after that.
    Of a weight that several ops read only the one that makes the tensor ``reader`` has it so; none named means all.
    """

    name: str
    graph: int
    order: tuple[int, ...]
    array: QuantizedArray | None = None
    integer: bool = False
    columns: Array | None = None
    reader: str = ""


def reason_not_stored(kind: str, scheme: OpScheme) -> str:
    """Why an op of type ``kind`` cannot have its weight stored as ``scheme`` says; empty where it can."""
    weight = scheme.weight
    if scheme.is_float:
        return "" if scheme.precision == "fp16" else f"LiteRT has no weights in {scheme.precision}"
    if weight is None:
        return f"LiteRT has no {kind} that takes ranges at run time; quantize it statically"
    if not weight.dtype.is_integer or weight.dtype.bits > 8:
        return f"LiteRT has no weights in {weight.dtype.name}; use an integer type of up to 8 bits"
    if not isinstance(weight.granularity, PerChannel | PerTensor | PerGroup):
        return f"scales {weight.granularity.name} have no form in LiteRT files; use per_channel"
    return _not_multiplied(kind, weight, scheme.activation) if scheme.mode == "dynamic" else ""


def _not_multiplied(kind: str, weight: TensorScheme, activation: TensorScheme | None) -> str:
    bits = _KERNELS.get(kind, ())
    if weight.dtype.bits not in bits or not weight.dtype.signed:
        return (
            f"LiteRT has no {kind} that multiplies weights in {weight.dtype.name} with inputs rounded at run time; take "
            + (f"int{bits[-1]}, or weight-only" if bits else "weight-only")
        )
    if not weight.symmetric or isinstance(weight.granularity, PerGroup):
        return (
            "kernels with ranges at run time have symmetric weights with a scale a channel; use weight-only for others"
        )
    if kind == "BATCH_MATMUL" and not isinstance(weight.granularity, PerTensor):
        return "BATCH_MATMUL has one scale for all of its weight; use per_tensor, or weight-only"
    if activation is None or activation.dtype.name != "int8" or activation.symmetric:
        return "kernels round inputs at run time to int8 with a zero point; use an asymmetric int8 activation"
    return ""


def layouts(kind: str, rank: int) -> list[tuple[int, ...]]:
    """The orders of axes that may make the weight of an op a matrix with one row an output."""
    plain = tuple(range(rank))
    if kind == "BATCH_MATMUL" and rank > 1:
        return [(*plain[:-2], rank - 1, rank - 2), plain]
    return [_LAYOUTS.get(kind, plain)]


def store_weights(content: bytes, weights: Sequence[StoredWeight]) -> bytes:
    """The file (with unique names) with weights stored as they say."""
    if not weights:
        return content
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for weight in weights:
        _Edit(model, model.subgraphs[weight.graph]).store(weight)
    return LiteGraph.bytes_of(model)


class _Edit:
    """One graph of a model that is being changed."""

    def __init__(self, model: Any, graph: Any) -> None:
        self.model, self.graph = model, graph

    def store(self, weight: StoredWeight) -> None:
        tensor = self._own(weight)
        shape = tuple(int(size) for size in self.graph.tensors[tensor].shape)
        if weight.array is None:
            data = self.model.buffers[self.graph.tensors[tensor].buffer].data
            halves = np.frombuffer(bytes(data), np.float32).astype(np.float16).reshape(shape)
            new = self._constant(_part(weight.name, "fp16"), halves, _TYPES.FLOAT16)
            self._computed(tensor, [new_op(self.model, "DEQUANTIZE", [new], [tensor], 3)])
            return
        codes, scale, zero = _rows(weight.array)
        dims = [shape[axis] for axis in weight.order]
        whole = dims[0] == len(codes) == weight.array.shape[0] and weight.columns is None
        if whole:  # a scale for each slice along one axis of the tensor
            back = np.argsort(weight.order)
            codes, axis = codes.reshape(dims).transpose(back), weight.order[0]
        else:
            axis = 0
        if weight.integer:
            if not whole:  # one scale for all of a BATCH_MATMUL
                codes, scale, zero = codes.reshape(dims).transpose(np.argsort(weight.order)), scale[:1], zero[:1]
            self._in_place(tensor, codes, scale, zero, axis, weight.array)
            return
        new = self._constant(_part(weight.name, "codes"), codes, _container(weight.array), (scale, zero, axis))
        if whole and self._is_table(tensor) and has_rows_to_look_up(weight.array):
            self._look_up(tensor, new, weight.array)
        elif whole:
            self._computed(tensor, [new_op(self.model, "DEQUANTIZE", [new], [tensor], _DEQUANTIZE_VERSION)])
        else:
            self._computed(tensor, self._from_rows(new, codes.shape, tensor, dims, weight))

    def _own(self, weight: StoredWeight) -> int:
        """The tensor of a weight, or one with the same values for the reader that is named, where it has others too."""
        places = {each.name.decode(): place for place, each in enumerate(self.graph.tensors)}
        tensor = places[weight.name]
        if self.graph.tensors[tensor].type != _TYPES.FLOAT32:
            raise QuantizationError(
                f"the weight {weight.name!r} is that of another op too, which has it in integers already; give both the "
                "same scheme, or keep one in float"
            )
        readers = self._readers(tensor)
        if not weight.reader or len(readers) == 1:
            return tensor
        self.graph.tensors.append(copy.copy(self.graph.tensors[tensor]))
        new = len(self.graph.tensors) - 1
        self.graph.tensors[new].name += f"/{places[weight.reader]}".encode()
        for op in readers:
            if places[weight.reader] in list(op.outputs):
                op.inputs = [new if int(each) == tensor else int(each) for each in op.inputs]
        return new

    def _from_rows(
        self, new: int, shape: tuple[int, ...], tensor: int, dims: list[int], weight: StoredWeight
    ) -> list[Any]:
        """The ops that make floats of rows of codes, divide the columns of the matrix, and put the axes in order."""
        name, steps = _part(weight.name, "stored"), []
        assert weight.array is not None
        last = self._float(f"{name}/values", list(shape))
        steps.append(new_op(self.model, "DEQUANTIZE", [new], [last], _DEQUANTIZE_VERSION))

        def reshaped(size: Sequence[int], target: int | None = None) -> int:
            target = self._float(f"{name}/{len(steps)}", size) if target is None else target
            form = self._constant(f"{name}/{len(steps)}/shape", np.asarray(size, np.int32), _TYPES.INT32)
            steps.append(new_op(self.model, "RESHAPE", [last, form], [target]))
            return target

        rows, columns = weight.array.shape
        if shape[0] * shape[1] > rows * columns:
            last = reshaped((rows, shape[0] * shape[1] // rows))
            start, size = (
                self._constant(f"{name}/{what}", np.asarray(value, np.int32), _TYPES.INT32)
                for what, value in (("start", (0, 0)), ("size", (rows, columns)))
            )
            target = self._float(f"{name}/cut", (rows, columns))
            steps.append(new_op(self.model, "SLICE", [last, start, size], [target]))
            last = target
        if weight.columns is not None:
            last = reshaped((rows, columns))
            divisor = np.asarray(weight.columns, np.float32).reshape(1, -1)
            by = self._constant(f"{name}/divisor", divisor, _TYPES.FLOAT32)
            target = self._float(f"{name}/divided", weight.array.shape)
            steps.append(new_op(self.model, "DIV", [last, by], [target]))
            last = target
        if list(weight.order) == sorted(weight.order):
            reshaped(dims, tensor)
            return steps
        last = reshaped(dims)
        back = self._constant(f"{name}/order", np.argsort(weight.order).astype(np.int32), _TYPES.INT32)
        steps.append(new_op(self.model, "TRANSPOSE", [last, back], [tensor]))
        return steps

    def _readers(self, tensor: int) -> list[Any]:
        return [op for op in self.graph.operators if tensor in list(op.inputs)]

    def _is_table(self, tensor: int) -> bool:
        kinds = {flatbuffer_utils.opcode_to_name(self.model, op.opcodeIndex) for op in self._readers(tensor)}
        return kinds == {"GATHER"}

    def _look_up(self, tensor: int, codes: int, array: QuantizedArray) -> None:
        """Have an embedding read rows of codes; without it the whole table would be floats in memory."""
        for op in self._readers(tensor):
            out = int(op.outputs[0])
            given, made = self.graph.tensors[int(op.inputs[1])], self.graph.tensors[out]
            count = int(np.prod(given.shape, dtype=np.int64))
            flat, rows = self._like(given, "flat", [count]), self._like(made, "rows", [count, array.shape[1]])
            ones = self._constant(f"{made.name.decode()}/flat", np.asarray([-1], np.int32), _TYPES.INT32)
            form = [-1, *(int(size) for size in made.shape[1:])]  # the batch may be open
            full = self._constant(f"{made.name.decode()}/shape", np.asarray(form, np.int32), _TYPES.INT32)
            place = self._place(op)
            self.graph.operators[place : place + 1] = [
                new_op(self.model, "RESHAPE", [int(op.inputs[1]), ones], [flat]),
                new_op(self.model, "EMBEDDING_LOOKUP", [flat, codes], [rows], 3),
                new_op(self.model, "RESHAPE", [rows, full], [out]),
            ]
        self.graph.tensors[tensor].buffer = 0

    def _in_place(self, tensor: int, codes: Array, scale: Array, zero: Array, axis: int, array: QuantizedArray) -> None:
        old = self.graph.tensors[tensor]
        new = self._constant(old.name.decode(), codes, _container(array), (scale, zero, axis))
        self.graph.tensors[tensor] = self.graph.tensors.pop(new)
        for op in self._readers(tensor):
            if hasattr(op.builtinOptions, "asymmetricQuantizeInputs"):
                op.builtinOptions.asymmetricQuantizeInputs = True

    def _computed(self, tensor: int, steps: list[Any]) -> None:
        """``tensor`` is no constant any more: ``steps`` compute it before the first op that reads it."""
        each = self.graph.tensors[tensor]
        each.buffer, each.name = 0, _part(each.name.decode(), "values").encode()
        first = min(place for place, op in enumerate(self.graph.operators) if tensor in list(op.inputs))
        self.graph.operators[first:first] = steps

    def _place(self, op: Any) -> int:
        return next(place for place, each in enumerate(self.graph.operators) if each is op)

    def _constant(self, name: str, values: Array, kind: Any, parameters: tuple[Array, Array, int] | None = None) -> int:
        return new_constant(self.model, self.graph, name, values, kind, parameters)

    def _float(self, name: str, shape: Sequence[int]) -> int:
        tensor = flatbuffer_utils.TensorT()
        tensor.name, tensor.shape, tensor.type = name.encode(), list(shape), _TYPES.FLOAT32
        tensor.buffer = 0
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _like(self, tensor: Any, suffix: str, shape: Sequence[int]) -> int:
        new = copy.copy(tensor)
        new.name, new.shape, new.shapeSignature, new.buffer = (
            _part(tensor.name.decode(), suffix).encode(),
            list(shape),
            None,
            0,
        )
        self.graph.tensors.append(new)
        return len(self.graph.tensors) - 1


def _rows(array: QuantizedArray) -> tuple[Array, Array, Array]:
    """Signed codes with one scale and zero point a row: rows are groups where these have scales of their own, of which
    the last of each row of the matrix is filled up."""
    columns = array.shape[1]
    low = 0 if array.scheme.dtype.signed else 2 ** (array.scheme.dtype.bits - 1)
    codes, width = (np.asarray(array.codes, np.int16) - low).astype(np.int8), columns
    if isinstance(array.scheme.granularity, PerGroup):
        groups = scale_shape(array.shape, array.scheme.granularity)[-1]
        width = min(array.scheme.granularity.size, columns)
        codes = np.pad(codes, ((0, 0), (0, groups * width - columns)))
    codes = codes.reshape(-1, width)
    scale = np.broadcast_to(np.asarray(array.qparams.scale, np.float32).reshape(-1), len(codes))
    zero = np.zeros(1) if array.qparams.zero_point is None else np.asarray(array.qparams.zero_point)
    return codes, scale, (np.broadcast_to(zero.reshape(-1), len(codes)) - low).astype(np.int64)


def has_rows_to_look_up(array: QuantizedArray | None) -> bool:
    """Whether the kernel of embeddings reads these codes: a scale a row and no zero point, and rows of whole bytes."""
    if array is None or isinstance(array.scheme.granularity, PerGroup):
        return False
    odd = _container(array) == _TYPES.INT4 and array.shape[1] % 2
    return not odd and not _rows(array)[2].any()


def kernel_name(kind: str, integer: bool) -> str:
    """What runs an op of type ``kind``: a kernel that multiplies ``integer`` codes, or a float one behind DEQUANTIZE."""
    return kind if integer else f"DEQUANTIZE + {kind}"


def _part(name: str, part: str) -> str:
    """The name of a tensor beside another: ops go by the first of the names in that of a tensor."""
    return f"{name.split(';', maxsplit=1)[0]}/{part}"


def _container(array: QuantizedArray) -> Any:
    small = array.scheme.dtype.bits <= 4
    return _TYPES.INT4 if small else _TYPES.INT8
