"""The model that a user gives: read, checked and normalised; one that is quantized already is refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.graph.normalise import EarlyPasses, normalise
from neural_compressor.onnx.runtime.fusion_check import INTEGER_OPS

Source = str | Path | onnx.ModelProto | ir.Model
QUANTIZED_TYPES = frozenset({*INTEGER_OPS, "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulBnb4"})
"""Types of node that only a quantized model has."""


def read_float_model(source: Source) -> ir.Model:
    """``source`` normalised, which is left as it is; a quantized model is refused."""
    early = EarlyPasses()
    model = read_model(source, early)
    model = model.clone() if isinstance(source, ir.Model) else model
    _refuse_quantized(model)
    return normalise(model, inferred=early.inferred)


def node_types(model: ir.Model) -> dict[str, str]:
    """The types of all nodes by name, those of subgraphs included, in the order they run."""
    return {str(node.name): node.op_type for node in model.graph.all_nodes()}


def _refuse_quantized(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if node.op_type in QUANTIZED_TYPES:
            raise ConfigError(
                f"the model is quantized already: its node {node.name!r} is a {node.op_type}; give the float model"
            )
    # Weights that are stored in integers leave no node that a float model has not.
    record = read_record(model)
    for (name, _), scheme in ({} if record is None else record.ops).items():
        if not scheme.is_float:
            raise ConfigError(
                f"the model is quantized already: its metadata have the weight of {name!r} in {scheme.precision}; "
                "give the float model"
            )
