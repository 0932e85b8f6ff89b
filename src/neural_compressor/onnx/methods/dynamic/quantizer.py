"""Dynamic quantization: weights in 8 bits, activations quantized over the range they have when the model runs."""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.queries import at_node, standard
from neural_compressor.onnx.methods.dynamic.ops import DYNAMIC_OPS, DynamicOp, DynamicTensors, checked_scheme
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, Plan


def quantize_dynamic(model: ir.Model, plan: Plan) -> ir.Model:
    """A new model in which the ops that ``plan`` puts in the mode "dynamic" multiply integers.

    ``model`` is a normalised one. A granularity per_channel means a scale for each output, whatever axis has them.
    """
    new = model.clone()
    nodes = dict(_candidates(new))
    wanted = {key: scheme for key, scheme in plan.items() if scheme.mode == "dynamic"}
    for key in wanted:
        if key not in nodes:
            known = [name for name, kind in nodes if kind == key[1]]
            raise ConfigError(f"there is no {key[1]} {key[0]!r} that can be dynamic; {close_matches(key[0], known)}")
    tensors = DynamicTensors(GraphEditor(new))
    for key, node in nodes.items():
        if key in wanted:
            op = DYNAMIC_OPS[node.op_type]
            with at_node(node.name):
                if reason := op.refusal(node):
                    raise QuantizationError(f"it cannot be quantized dynamically: {reason}")
                op.rewrite(tensors, node, checked_scheme(wanted[key]))
    return new


def dynamic_nodes(model: ir.Model) -> dict[OpKey, str | None]:
    """Every node of the op types that can be dynamic, with why it cannot be quantized, or None where it can."""
    return {key: DYNAMIC_OPS[node.op_type].refusal(node) for key, node in _candidates(model)}


def _candidates(model: ir.Model) -> list[tuple[OpKey, ir.Node]]:
    return [
        ((str(node.name), node.op_type), node)
        for node in model.graph.all_nodes()
        if node.op_type in DYNAMIC_OPS and _is_of(DYNAMIC_OPS[node.op_type], node)
    ]


def _is_of(op: DynamicOp, node: ir.Node) -> bool:
    return node.domain == op.domain if op.domain else standard(node, node.op_type)
