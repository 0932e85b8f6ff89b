"""What tells one model from another: its nodes and the bytes of its weights."""

from __future__ import annotations

import hashlib

import onnx_ir as ir

from neural_compressor.onnx.files.model_file import initializers


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
