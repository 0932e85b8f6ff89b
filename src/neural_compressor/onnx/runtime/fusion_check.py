"""A check of what ONNX Runtime makes of a quantized model: which ops it computes in integers, and which in float."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import onnx
import onnx_ir as ir

from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.graph.integer_tensors import EIGHT_BITS
from neural_compressor.onnx.graph.ops import OP_TYPES, OpType, Output
from neural_compressor.onnx.graph.queries import is_float, producer, standard
from neural_compressor.onnx.runtime.session import make_session

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class RunningNode:
    """A node that the runtime executes, and whether some input of it is dequantized first."""

    op_type: str
    dequantizes: bool


def running_in_float(
    model: ir.Model,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    running: Mapping[str, RunningNode] | None = None,
) -> dict[str, str]:
    """The quantized ops of ``model`` that ONNX Runtime computes in float, with the reason; a warning names them.

    ``running`` is what :func:`as_run` gives, where that is known.
    """
    quantized = {str(node.name): node for node in model.graph if standard(node, *OP_TYPES) and _is_quantized(node)}
    if running is None:
        running = as_run(model, providers) if quantized else {}
    floats = {name: _reason(node) for name, node in quantized.items() if name in running and running[name].dequantizes}
    if floats:
        count = len(quantized) + sum(node.op_type in INTEGER_OPS for node in model.graph)
        named = ", ".join(f"{name} ({reason})" for name, reason in islice(floats.items(), _NAMED))
        more = f" and {len(floats) - _NAMED} more" if len(floats) > _NAMED else ""
        logger.warning("%d of %d quantized ops run in float: %s%s", len(floats), count, named, more)
    return floats


_NAMED = 8
"""How many ops a warning names."""
INTEGER_OPS = frozenset(
    {
        *("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "QLinearAdd", "QLinearMul", "QLinearConcat"),
        *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
        *("MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits"),
        *("QAttention", "GatherBlockQuantized"),
    }
)
"""Op types that compute with integers, or with weights of a few bits."""


def as_run(model: ir.Model, providers: Sequence[str]) -> dict[str, RunningNode]:
    """The nodes that the runtime executes, by name; the next level would change layouts and with them the names."""
    with scratch_folder() as folder:
        path = folder / "optimized.onnx"
        make_session(model, providers=providers, level="extended", threads=1, optimized_path=str(path))
        nodes = onnx.load(path, load_external_data=False).graph.node
    floats = {output for node in nodes if _is_dequantizer(node) for output in node.output}
    return {_name_before(node): RunningNode(node.op_type, not floats.isdisjoint(node.input)) for node in nodes}


def _is_dequantizer(node: onnx.NodeProto) -> bool:
    return node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx")


def _name_before(node: onnx.NodeProto) -> str:
    """The name a node had before the runtime put an addition or an activation into it."""
    return str(node.name.removeprefix("fused ").removesuffix("/MatMulAddFusion"))


def _is_quantized(node: ir.Node) -> bool:
    """Whether a node reads nothing but dequantized values, and a light one is also written for a quantizer."""
    op: OpType = OP_TYPES[node.op_type]
    places = range(len(node.inputs)) if op.activations is None else (*op.activations, *_places(op))
    if not places or not all(producer(node.inputs[i], "DequantizeLinear") for i in places):
        return False
    return not op.light or _quantizer(node) is not None


def _places(op: OpType) -> tuple[int, ...]:
    return () if op.weight is None else (op.weight,)


def _quantizer(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    alone = bool(uses) and all(standard(use.node, "QuantizeLinear") for use in uses)
    return uses[0].node if alone and not node.outputs[0].is_graph_output() else None


def _reason(node: ir.Node) -> str:
    op = OP_TYPES[node.op_type]
    if op.output is Output.FLOAT:
        return f"the runtime has no integer {node.op_type}"
    types = [_type(value) for value in node.inputs[:2]]
    for kind in types:
        if kind is not None and kind not in EIGHT_BITS:
            return f"the runtime has no integer {node.op_type} on {kind}"
    if op.output is Output.INTEGER and _quantizer(node) is None:
        return "its output is not quantized at once"
    bias = node.inputs[2] if op.bias is not None and len(node.inputs) > 2 else None
    if is_float(bias) and producer(bias, "DequantizeLinear") is None:
        return "its bias is in float"
    return "the runtime did not take it"


def _type(value: ir.Value | None) -> str | None:
    node = producer(value, "DequantizeLinear")
    if node is None or node.inputs[2] is None or node.inputs[2].const_value is None:
        return None
    return node.inputs[2].const_value.dtype.name.lower()
