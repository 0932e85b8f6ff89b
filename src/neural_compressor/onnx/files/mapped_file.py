"""Models in one protobuf file: large weights are mapped from it, not read, and written one after the other.

So memory holds one of them at a time; protobuf itself reads and writes a message whole: 0.4 GiB of weights in one file, each
looked at and written again, took 1.0 s and 80 MiB so, 2.7 s and 1200 MiB by onnx, 2.9 s and 1600 MiB by onnx_ir
(``benchmarks/onnx_files.py``).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from neural_compressor.onnx.files.message_check import checked_message

_LARGE = 1 << 16
"""Weights of fewer bytes are read with the graph."""
_GRAPH, _NODE, _INITIALIZER, _GRAPH_OUTPUT, _RAW_DATA = 7, 1, 5, 12, 9
"""The numbers of ModelProto.graph, GraphProto.node, .initializer and .output, and TensorProto.raw_data."""
_OUTPUT, _OP_TYPE, _ATTRIBUTE, _DOMAIN, _TENSOR = 2, 4, 5, 7, 5
"""The numbers of NodeProto.output, .op_type, .attribute and .domain, and of AttributeProto.t."""
_FIXED = {1: 8, 5: 4}
"""Bytes of a field by its wire type, where that says it."""
_WITH_LENGTH = 2


class _Field(NamedTuple):
    number: int
    start: int
    content: int
    end: int


class MappedTensor(ir.Tensor[Any]):
    """A weight that lies in a file. The file may be replaced meanwhile: what was mapped stays as it was."""

    def __init__(self, mapping: mmap.mmap, start: int, like: ir.TensorProtocol) -> None:
        shape, dtype = tuple(like.shape.numpy()), like.dtype.numpy()
        array = np.frombuffer(mapping, dtype, like.size, start).reshape(shape)
        super().__init__(
            array, like.dtype, name=like.name, doc_string=like.doc_string, metadata_props=dict(like.metadata_props)
        )
        self._mapping, self._span = mapping, slice(start, start + array.nbytes)

    def release(self) -> None:
        """Give back the memory that the file's pages take; they are read again when they are looked at."""
        page = mmap.PAGESIZE
        first, last = -(-self._span.start // page) * page, self._span.stop // page * page
        if last > first:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def release(tensor: ir.TensorProtocol | None) -> None:
    """Give back what a weight takes in memory, where it lies in a file."""
    if isinstance(tensor, MappedTensor):
        tensor.release()
    elif isinstance(tensor, ir.ExternalTensor):
        with suppress(BufferError):  # somebody is reading it
            tensor.release()


def map_external(model: ir.Model) -> None:
    """Have external data mapped from its files, which may then be removed."""
    mappings: dict[str, mmap.mmap] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if not _is_plain(tensor.dtype) or not tensor.size:
            value.const_value = ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=tensor.name)
            continue
        path = str(tensor.path)
        if path not in mappings:
            mappings[path] = _mapped(Path(path))
        value.const_value = MappedTensor(mappings[path], tensor.offset or 0, tensor)


def can_map() -> bool:
    """Whether files can be mapped, and replaced while they are."""
    return hasattr(mmap, "MADV_DONTNEED")


def read_mapped(path: Path, early: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None) -> ir.Model:
    """The model in ``path``, in protobuf; like what ``onnx_ir.load`` gives, but for where its weights are.

    ``early`` may change the protobuf, whose large weights have no data.
    """
    mapping = _mapped(path)
    large: dict[str, int] = {}
    message = bytearray()
    for field in _fields(mapping, 0, len(mapping)):
        if field.number != _GRAPH:
            message += mapping[field.start : field.end]
            continue
        graph = _without_large(mapping, field, large)
        message += _with_length(_GRAPH, graph)
    proto = checked_message(onnx.ModelProto.FromString(bytes(message)), str(path), large)
    model: ir.Model = ir.from_proto(proto if early is None else early(proto))
    for name, start in large.items():
        value = model.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = MappedTensor(mapping, start, value.const_value)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _without_large(mapping: mmap.mmap, graph: _Field, large: dict[str, int]) -> bytes:
    """A graph whose large weights are initializers without data; where that lies goes to ``large``."""
    kept = bytearray()
    fields = list(_fields(mapping, graph.content, graph.end))
    outputs = [mapping[field.content : field.end] for field in fields if field.number == _GRAPH_OUTPUT]
    given = {onnx.ValueInfoProto.FromString(output).name for output in outputs}
    for field in fields:
        found = _large_tensor(mapping, field)
        if found is None or found[2] in given:  # an output needs its node
            kept += mapping[field.start : field.end]
            continue
        tensor, data, name = found
        head = onnx.TensorProto.FromString(mapping[tensor.content : data.start] + mapping[data.end : tensor.end])
        dtype = ir.DataType(head.data_type)
        if not _is_plain(dtype) or 8 * (data.end - data.content) != dtype.bitwidth * _count(head):
            kept += mapping[field.start : field.end]  # packed, or not what it says it is
            continue
        head.name = name or head.name
        large[head.name] = data.content
        kept += _with_length(_INITIALIZER, head.SerializeToString())
    return bytes(kept)


def _large_tensor(mapping: mmap.mmap, field: _Field) -> tuple[_Field, _Field, str] | None:
    """The tensor of an initializer or a Constant, its data, and the name it goes by if not its own; None for all else."""
    if field.end - field.content < _LARGE or field.number not in (_INITIALIZER, _NODE):
        return None
    name = ""
    if field.number == _NODE:
        parts = list(_fields(mapping, field.content, field.end))
        texts = {part.number: mapping[part.content : part.end] for part in parts if part.number != _ATTRIBUTE}
        attributes = [part for part in parts if part.number == _ATTRIBUTE]
        if texts.get(_OP_TYPE) != b"Constant" or texts.get(_DOMAIN, b"") not in (b"", b"ai.onnx") or not attributes:
            return None
        tensors = [
            part for part in _fields(mapping, attributes[0].content, attributes[0].end) if part.number == _TENSOR
        ]
        if len(attributes) != 1 or len(tensors) != 1:
            return None
        field, name = tensors[0], texts[_OUTPUT].decode()
    parts = [part for part in _fields(mapping, field.content, field.end) if part.number == _RAW_DATA]
    return (field, parts[0], name) if len(parts) == 1 and parts[0].end - parts[0].content >= _LARGE else None


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _is_plain(dtype: ir.DataType) -> bool:
    """Whether an array in memory looks as it does in a file."""
    return dtype != ir.DataType.STRING and dtype.bitwidth == 8 * np.dtype(dtype.numpy()).itemsize


def _count(head: onnx.TensorProto) -> int:
    return math.prod(head.dims)


def _fields(mapping: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message between two places."""
    while start < end:
        key, place = _varint(mapping, start, end)
        number, kind = key >> 3, key & 7
        content = place
        if kind == 0:
            _, place = _varint(mapping, place, end)
        elif kind in _FIXED:
            place += _FIXED[kind]
        elif kind == _WITH_LENGTH:
            length, content = _varint(mapping, place, end)
            place = content + length
        else:
            raise DecodeError(f"wire type {kind} at byte {start}")
        if place > end:
            raise DecodeError(f"the field at byte {start} ends behind byte {end}, where the message does")
        yield _Field(number, start, content, place)
        start = place


def _varint(mapping: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place behind it."""
    value = shift = 0
    while place < end:
        byte = mapping[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise DecodeError(f"the message ends at byte {end} within a number")


def _with_length(number: int, content: bytes) -> bytes:
    """A field of any content."""
    return _opened(number, len(content)) + content


def _opened(number: int, length: int) -> bytes:
    """A field of so many bytes, up to its content."""
    return _varint_of(number << 3 | _WITH_LENGTH) + _varint_of(length)


def _varint_of(number: int) -> bytes:
    """A number of seven bits a byte, the lowest first; the eighth bit says that there are more."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


_AT_ONCE = 1 << 20
"""Weights of fewer bytes are written together with the graph."""


def write_one_file(model: ir.Model, path: Path) -> None:
    """Write ``model`` with all its weights as ``path``; the same message as if it were made whole first."""
    streamed = {
        value: tensor
        for value in model.graph.initializers.values()
        if (tensor := value.const_value) is not None and _is_streamed(tensor)
    }
    inner = (v for graph in model.graph.subgraphs() for v in graph.initializers.values())
    here = {v: ir.Tensor(t.numpy(), t.dtype) for v in inner if isinstance(t := v.const_value, ir.ExternalTensor)}
    with constants_replaced(here | {value: ir.tensor(np.zeros(0, np.uint8)) for value in streamed}):
        proto = ir.to_proto(model)
    names = {value.name for value in streamed}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = {value: _head(str(value.name), tensor) for value, tensor in streamed.items()}
    sizes = {value: len(heads[value]) + tensor.nbytes for value, tensor in streamed.items()}
    length = len(graph) + sum(len(_opened(_INITIALIZER, size)) + size for size in sizes.values())
    with path.open("wb") as file:
        file.write(proto.SerializeToString() + _opened(_GRAPH, length) + graph)
        for value, tensor in streamed.items():
            data = tensor.tobytes()
            if len(data) != tensor.nbytes:
                raise ValueError(
                    f"the weight {tensor.name!r} has {len(data)} bytes, and {tensor.nbytes} were announced"
                )
            file.write(_opened(_INITIALIZER, sizes[value]) + heads[value])
            file.write(data)
            release(tensor)


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    large = tensor.nbytes >= _AT_ONCE or isinstance(tensor, ir.ExternalTensor)
    return large and tensor.dtype != ir.DataType.STRING


@contextmanager
def constants_replaced(tensors: Mapping[ir.Value, ir.TensorProtocol]) -> Iterator[None]:
    """Within it values have ``tensors`` as constants."""
    own = {value: value.const_value for value in tensors}
    try:
        for value, tensor in tensors.items():
            value.const_value = tensor
        yield
    finally:
        for value, held in own.items():
            value.const_value = held


def _head(name: str, tensor: ir.TensorProtocol) -> bytes:
    """A tensor up to its data."""
    dims = tensor.shape.numpy()
    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=dims, doc_string=tensor.doc_string or None)
    for key, text in tensor.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    return bytes(proto.SerializeToString()) + _opened(_RAW_DATA, tensor.nbytes)
