"""A model ready to be quantized: read, checked, brought into the form that the rest works on, simplified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.graph.normalise import EarlyPasses, normalise
from neural_compressor.onnx.passes.optimize import optimise
from neural_compressor.onnx.passes.simplify import simplify, tidy

QUANTIZED_TYPES = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits", "MatMulBnb4"),
        *("GatherBlockQuantized", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"),
    }
)
"""Types of node that only a quantized model has."""


@dataclass(frozen=True)
class Prepared:
    """``kinds`` holds the types of nodes by name: those of the model as it was given, and of what simplifying made of it.

    Rules are about these, so that a node can be named that simplifying takes away.
    """

    model: ir.Model
    kinds: Mapping[str, str]


def prepare(source: str | Path | onnx.ModelProto | ir.Model, config: Composition, level: Any = None) -> Prepared:
    """``source`` ready for ``config``; the source itself is left as it is.

    ``level`` says how far ONNX Runtime simplifies the graph first. Where nothing is said, it does for static quantization,
    which gains from constants computed beforehand, as far as nodes keep their names; other models are tidied only.
    """
    model = read_float_model(source)
    kinds = node_types(model)
    if level is not None or has_static(config):
        model = optimise(model, None if level is None else str(getattr(level, "name", level)))
    if has_static(config):
        simplify(model)
    elif level is None:
        tidy(model)
    return Prepared(model, {**kinds, **{name: kind for name, kind in node_types(model).items() if name not in kinds}})


def read_float_model(source: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """``source`` normalised, which is left as it is; a quantized model is refused."""
    early = EarlyPasses()
    model = read_model(source, early)
    model = model.clone() if isinstance(source, ir.Model) else model
    _refuse_quantized(model)
    return normalise(model, inferred=early.inferred)


def node_types(model: ir.Model) -> dict[str, str]:
    """The types of all nodes by name, those of subgraphs included, in the order they run."""
    return {str(node.name): node.op_type for node in model.graph.all_nodes()}


def has_static(config: Composition) -> bool:
    """Whether some node may be quantized statically."""
    every = (each for part in config.parts for each in (part, *(rule.config for rule in part.local)))
    return any(getattr(each, "approach", "") == "static" for each in every)


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
