"""A model as a protobuf message, and what it takes on disk."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from neural_compressor.onnx.files.identity import node_bytes
from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES, weight_bytes, without_inferable


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
