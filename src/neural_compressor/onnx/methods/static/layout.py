"""The layout of a quantized graph: which ops of a plan run in integers, and which tensors are handed on as integers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from neural_compressor.onnx.graph.ops import PASS_ON, NodeInfo, Output, folds_into_quantizer
from neural_compressor.onnx.graph.queries import array_of, input_of, is_float, only_consumer, producer, standard
from neural_compressor.onnx.graph.sum_order import is_depthwise
from neural_compressor.onnx.methods.static.integer_race import IntegerRace
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.schemes import OpKey, OpScheme, TensorScheme

logger = logging.getLogger("neural_compressor")

_MANY_CHANNELS = 8
"""In groups of fewer channels an integer convolution takes 3 to 10 times as long as a float one; with 16 it is even."""
_MUCH_WEIGHT = 1 << 16
"""At one place of an image a convolution with fewer weights takes less time than its two conversions."""
_FUSED_IN_FLOAT = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Softplus", "Softsign", "Elu")
"""What the runtime computes in one kernel with a Gemm that gives floats."""


def conv_kind(conv: ir.Node) -> str:
    """The kind of convolution that the CPU is slower at in integers, or slower where they have to be made for it.

    "slow": groups of a few channels each, which take longer even where integers come and go at no cost. "depthwise": on
    images the float kernel is the faster one; on signals, and in three dimensions, it is the other way round. "small":
    there is so little to compute, such as on averages over an image, that conversions count. Empty for all others.
    """
    weight, shape, groups = array_of(conv.inputs[1]).shape, conv.outputs[0].shape, conv.attributes.get_int("group", 1)
    inputs, outputs = weight[1], weight[0] // groups
    if groups > 1 and max(inputs, outputs) > 1 and min(inputs, outputs) < _MANY_CHANNELS:
        return "slow"
    if len(weight) == 4 and is_depthwise(weight, groups):
        return "depthwise"
    at_one_place = shape is not None and all(size == 1 for size in shape[2:])
    return "small" if at_one_place and math.prod(weight) < _MUCH_WEIGHT else ""


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A tensor that comes as integers from where it is computed, so that every consumer reads these.

    ``raw`` is what the op gives; behind it there may be a Relu or Clip, which gives the tensor. ``source`` is the tensor
    whose range sets the scale: another one where values are only passed on. ``integer_only``: the op gives nothing but
    integers.
    """

    raw: ir.Value
    scheme: TensorScheme
    source: ir.Value
    integer_only: bool
    clip: ir.Node | None = None


@dataclass(frozen=True, eq=False)
class QuantizedOp:
    """A node to run in integers, with its scheme and the tensors it reads as integers, by place."""

    info: NodeInfo
    scheme: OpScheme
    reads: Mapping[int, ir.Value]

    @property
    def activation(self) -> TensorScheme:
        """How what it reads is quantized."""
        assert self.scheme.activation is not None
        return self.scheme.activation


_Ops = Mapping[ir.Node, QuantizedOp]


@dataclass(frozen=True)
class Layout:
    """``tensors`` in the order they are computed; ``left``: ops of the plan that stay in float, with the reason.

    ``candidates`` are the tensors that ops of the plan read, each with its scheme: what other layouts of a plan that has
    more ops in float may need the range of.
    """

    ops: _Ops
    tensors: Mapping[ir.Value, QuantizedTensor]
    left: Mapping[OpKey, str]
    candidates: Sequence[tuple[ir.Value, TensorScheme]]

    def is_quantized(self, value: ir.Value, scheme: TensorScheme) -> bool:
        """Whether ``value`` comes as integers of ``scheme`` from where it is computed."""
        return value in self.tensors and self.tensors[value].scheme == scheme

    def source(self, value: ir.Value, scheme: TensorScheme) -> ir.Value:
        """The tensor whose range sets the scale with which ``value`` is quantized."""
        return self.tensors[value].source if self.is_quantized(value, scheme) else value


def lay_out(
    model: ir.Model,
    planned: _Ops,
    kept: set[ir.Node],
    options: StaticOptions,
    race: IntegerRace | None = None,
) -> Layout:
    """Lay the ops of ``planned`` out; the nodes of ``kept`` pass no integers on, as the plan has them in float.

    Ops that integers make no faster where they are, and that nobody named, are dropped from the plan, in rounds: each may
    have been what another one's integers came from or went to. Which these are a ``race`` on this machine says, or else
    fixed rules.
    """
    active = dict(planned)
    left: dict[OpKey, str] = {}
    if race is not None:  # the largest first, as there may not be time for all
        active = dict(sorted(planned.items(), key=lambda item: -race.count_products(item[0], item[1].info.weight)))
    while True:
        wanted = _wanted(model.graph, active, kept)
        tensors = _quantized_tensors(model.graph, active, kept, wanted, options)
        dropped = _unpaid(active, tensors, wanted, options, race)
        if not dropped:
            break
        left |= {active.pop(node).info.key: reason for node, reason in dropped.items()}
    active = {node: active[node] for node in planned if node in active}
    weighted = [node for node, op in planned.items() if op.info.weight is not None]
    if race is not None and weighted and not any(node in active for node in weighted):
        # A model that was to be quantized and would stay as it is helps nobody: it is at least smaller.
        logger.warning("integers make none of the %d ops with weights faster here; they serve its size", len(weighted))
        return lay_out(model, planned, kept, options)
    candidates = [(value, op.activation) for op in planned.values() for value in op.reads.values()]
    return Layout(active, tensors, left, candidates)


def _wanted(graph: ir.Graph, active: _Ops, kept: set[ir.Node]) -> set[ir.Value]:
    """The tensors that some op of ``active`` reads, itself or behind nodes that pass integers on."""
    wanted: set[ir.Value] = set()
    for node in reversed(graph):
        if node in active:
            wanted.update(active[node].reads.values())
        elif any(value in wanted for value in node.outputs):
            before = producer(node.inputs[0]) if node.inputs else None
            if passes_on(node, kept) or (before in active and folds_into_quantizer(node)):
                wanted.add(input_of(node, 0))
    return wanted


def _quantized_tensors(
    graph: ir.Graph, active: _Ops, kept: set[ir.Node], wanted: set[ir.Value], options: StaticOptions
) -> dict[ir.Value, QuantizedTensor]:
    tensors: dict[ir.Value, QuantizedTensor] = {}
    for node in graph:
        output = node.outputs[0] if node.outputs else None
        if node in active and output is not None:
            gives = active[node].info.op.output
            integer_only = gives is Output.INTEGER and node.op_type not in options.optypes_to_exclude_output_quant
            if gives is Output.FLOAT or not (integer_only or output in wanted):
                continue
            clip = next((user for user in output.consumers() if folds_into_quantizer(user)), None)
            value = output if clip is None else clip.outputs[0]
            tensors[value] = QuantizedTensor(output, active[node].activation, value, integer_only, clip)
        elif passes_on(node, kept) and any(value in wanted for value in node.outputs):
            tensor = tensors.get(input_of(node, 0))
            if tensor is not None:
                tensors |= {value: replace(tensor, raw=value, clip=None) for value in node.outputs}
    return tensors


def _unpaid(
    active: _Ops,
    tensors: Mapping[ir.Value, QuantizedTensor],
    wanted: set[ir.Value],
    options: StaticOptions,
    race: IntegerRace | None,
) -> dict[ir.Node, str]:
    """The ops that would not profit from integers, with the reason."""
    reasons: dict[ir.Node, str] = {}
    for node, op in active.items():
        if node.name in options.named:
            continue
        fed = any(value in tensors and tensors[value].integer_only for value in op.reads.values())
        emits = node.outputs[0] in wanted
        why = None
        schemes = (op.scheme.weight, op.scheme.activation)
        if race is not None and all(scheme is not None and scheme.dtype.bits == 8 for scheme in schemes):
            why = race.reason_for_float(op.info, fed, emits)
        if race is not None and standard(node, "Gemm") and not emits and options.quant_format == "QDQ":
            behind = only_consumer(node)
            if behind is not None and standard(behind, *_FUSED_IN_FLOAT):
                why = f"the runtime computes it with the {behind.op_type} behind it, and that in float only"
        if why is None:
            why = _unpaid_by_rule(op.info, fed, emits, options.on_cpu)
        if why:
            reasons[node] = why
    return reasons


def _unpaid_by_rule(info: NodeInfo, fed: bool, emits: bool, on_cpu: bool) -> str:
    kind = conv_kind(info.node) if on_cpu and info.node.op_type == "Conv" else ""
    if info.tables and info.op.light:
        return "one side is constant: in float it costs as little and loses nothing"
    if kind == "slow":
        return "its groups have few channels each, which takes longer in integers than in float"
    if (info.op.light or kind) and not fed:
        return "no op before it gives integers, so it would need them made for it"
    if (info.op.light or kind == "depthwise") and not emits:
        return "no op behind it takes integers, so its own would be turned back"
    return ""


def passes_on(node: ir.Node, kept: set[ir.Node]) -> bool:
    """Whether ``node`` gives out float values of its first input unchanged."""
    if not standard(node, *PASS_ON) or node in kept or not is_float(node.inputs[0]):
        return False
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    # With the places of the maxima asked for there is no integer kernel.
    return node.op_type != "MaxPool" or len(node.outputs) == 1
