"""A model as protobuf bytes: its size on disk, its nodes, and a fingerprint that tells it from others."""

from __future__ import annotations

import hashlib

import onnx
import onnx_ir as ir

from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES, initializers, weight_bytes, without_inferable


def fingerprint(model: ir.Model) -> str:
    """Sixteen hex digits that differ where nodes, inputs, outputs or weights do; metadata of the file does not count."""
    digest = hashlib.sha256(repr(sorted(model.opset_imports.items())).encode())
    for value in (*model.graph.inputs, *model.graph.outputs):
        digest.update(f"{value.name} {value.dtype} {value.shape}\n".encode())
    for node in model.graph:
        digest.update(node_bytes(node))
    for value, tensor in initializers(model):
        digest.update(f"{value.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:16]


def node_bytes(node: ir.Node) -> bytes:
    """``node`` as a file stores it, subgraphs included."""
    return bytes(ir.serde.serialize_node(node).SerializeToString(deterministic=True))


def as_proto(model: ir.Model) -> onnx.ModelProto:
    """``model`` with all its weights inside, those from files of their own too."""
    return ir.to_proto(ir.external_data.load_to_model(model.clone()))


def stored_bytes(model: ir.Model) -> int:
    """Bytes of the file, or files; where there are several, of weights and nodes."""
    weights = weight_bytes(model)
    if weights <= ONE_FILE_BYTES:
        with without_inferable(model):
            return int(as_proto(model).ByteSize())
    return weights + sum(len(node_bytes(node)) for node in model.graph)
