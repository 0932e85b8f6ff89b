"""Models written as one protobuf file, weight after weight: memory holds one of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from neural_compressor.onnx.files.mapped_file import release, varint

_AT_ONCE = 1 << 20
"""Weights of fewer bytes are written together with the graph."""
# Tags of fields with a length: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = b"\x3a", b"\x2a", b"\x4a"


def write_one_file(model: ir.Model, path: Path) -> None:
    """Write ``model`` with all its weights as ``path``; the same message as if it were made whole first."""
    streamed = {
        value: tensor
        for value in model.graph.initializers.values()
        if (tensor := value.const_value) is not None and _is_streamed(tensor)
    }
    inner = (v for graph in model.graph.subgraphs() for v in graph.initializers.values())
    here = {v: ir.Tensor(t.numpy(), t.dtype) for v in inner if isinstance(t := v.const_value, ir.ExternalTensor)}
    with _instead(here | {value: ir.tensor(np.zeros(0, np.uint8)) for value in streamed}):
        proto = ir.to_proto(model)
    names = {value.name for value in streamed}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = {value: _head(str(value.name), tensor) for value, tensor in streamed.items()}
    length = len(graph) + sum(_field_length(len(heads[v]) + t.nbytes) for v, t in streamed.items())
    with path.open("wb") as file:
        file.write(proto.SerializeToString() + _GRAPH + varint(length) + graph)
        for value, tensor in streamed.items():
            _write_tensor(file, heads[value], tensor)


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    large = tensor.nbytes >= _AT_ONCE or isinstance(tensor, ir.ExternalTensor)
    return large and tensor.dtype != ir.DataType.STRING


@contextmanager
def _instead(tensors: Mapping[ir.Value, ir.TensorProtocol]) -> Iterator[None]:
    """Constants replaced meanwhile."""
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
    return b"".join((proto.SerializeToString(), _RAW_DATA, varint(tensor.nbytes)))


def _write_tensor(file: BinaryIO, head: bytes, tensor: ir.TensorProtocol) -> None:
    data = tensor.tobytes()
    if len(data) != tensor.nbytes:
        raise ValueError(f"the weight {tensor.name!r} has {len(data)} bytes, and {tensor.nbytes} were announced")
    file.write(_INITIALIZER + varint(len(head) + len(data)) + head)
    file.write(data)
    release(tensor)


def _field_length(content: int) -> int:
    return 1 + len(varint(content)) + content
