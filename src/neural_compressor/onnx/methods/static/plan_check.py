"""A plan checked against a model before any work starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.error_context import at_node
from neural_compressor.onnx.graph.integer_tensors import ACTIVATIONS, EIGHT_BITS, STORED
from neural_compressor.onnx.graph.ops import CLIPS, OP_TYPES, PASS_ON, NodeInfo, quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_TENSOR, OpKey, OpScheme, PerGroup, Plan, TensorScheme

logger = logging.getLogger("neural_compressor")


def checked_schemes(model: ir.Model, plan: Plan, options: StaticOptions) -> dict[OpKey, OpScheme]:
    """What ``plan`` has as static, less the ops that only pass on what their neighbours give them."""
    nodes = quantizable_nodes(model)
    known = {(str(node.name), node.op_type) for node in model.graph.all_nodes()}
    schemes = {key: scheme for key, scheme in plan.items() if scheme.mode == "static"}
    for key in schemes:
        if key not in nodes:
            _check_named(key, known, model)
    chosen = {key: schemes[key] for key in nodes if key in schemes}
    for key, scheme in chosen.items():
        with at_node(key[0]):
            _check(nodes[key], scheme, options)
    return chosen


def kept_in_float(model: ir.Model, plan: Plan) -> set[ir.Node]:
    """The nodes that could pass integers on and that ``plan`` has in float."""
    keys = {key for key, scheme in plan.items() if scheme.is_float and key[1] in PASS_ON}
    return {node for node in model.graph if (node.name, node.op_type) in keys}


def is_wide(schemes: Mapping[OpKey, OpScheme]) -> bool:
    """Whether a type is among ``schemes`` that is not of eight bits."""
    tensors = (t for scheme in schemes.values() for t in (scheme.weight, scheme.activation) if t is not None)
    return any(t.dtype.name in STORED.keys() - set(EIGHT_BITS) for t in tensors)


def _check_named(key: OpKey, known: set[OpKey], model: ir.Model) -> None:
    name, op_type = key
    if key not in known:
        names = [n for n, kind in known if kind == op_type] or [n for n, _ in known]
        raise ConfigError(f"the model has no {op_type} called {name!r}; {close_matches(name, names)}")
    if op_type in OP_TYPES and (reason := unquantizable_nodes(model).get(key)) is not None:
        raise ConfigError(f"{name!r} ({op_type}) cannot be quantized: {reason}")
    if op_type not in PASS_ON and op_type not in CLIPS:
        raise ConfigError(f"{name!r}: {op_type} is not quantized statically; {close_matches(op_type, OP_TYPES)}")


def _check(info: NodeInfo, scheme: OpScheme, options: StaticOptions) -> None:
    eight_only = options.quant_format == "QOperator"
    if info.activations:
        if scheme.activation is None:
            raise ConfigError("its activation is in float, and static quantization needs it in integers")
        _check_tensor(scheme.activation, "an activation", EIGHT_BITS if eight_only else ACTIVATIONS)
        if scheme.activation.granularity != PER_TENSOR:
            raise ConfigError(f"activations have one scale a tensor, not {scheme.activation.granularity.name}")
    if info.weight_index is not None:
        if scheme.weight is None:
            raise ConfigError("it has a weight, and the plan says nothing of it")
        _check_tensor(scheme.weight, "a weight", EIGHT_BITS if eight_only else tuple(STORED))
        if isinstance(scheme.weight.granularity, PerGroup):
            raise ConfigError("scales a group belong to weight-only quantization; use per_tensor or per_channel")
        if options.on_cpu and info.node.op_type == "Conv" and _has_zero_points(scheme):
            raise ConfigError(
                "a Conv with a zero point for each channel is dequantized at every run, which takes ten times as long as "
                "float; use the scheme sym (all zero points are 128), int8, or granularity per_tensor"
            )
        if scheme.weight.granularity != PER_TENSOR and info.axis is None:
            logger.info("%s (%s) gets one scale for its weight: the runtime takes none a channel there", *info.key)


def _has_zero_points(scheme: OpScheme) -> bool:
    """Whether the channels of an 8-bit weight have unsigned zero points of their own."""
    weight, activation = scheme.weight, scheme.activation
    if weight is None or activation is None or activation.dtype.name not in EIGHT_BITS:
        return False
    return weight.dtype.name == "uint8" and not weight.symmetric and weight.granularity != PER_TENSOR


def _check_tensor(scheme: TensorScheme, what: str, types: tuple[str, ...]) -> None:
    if scheme.dtype.name not in types:
        raise ConfigError(f"{what} can be {', '.join(types)} in this format, not {scheme.dtype.name}")
