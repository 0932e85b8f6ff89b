"""The layout of a quantized graph: which ops of a plan run in integers, and which tensors are handed on as integers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from neural_compressor.onnx.graph.ops import PASS_ON, NodeInfo, Output, folds_into_quantizer
from neural_compressor.onnx.graph.queries import array_of, input_of, is_float, producer, standard
from neural_compressor.onnx.methods.static.integer_race import IntegerRace, activation_behind
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.schemes import OpKey, OpScheme, TensorScheme

logger = logging.getLogger("neural_compressor")

_MANY_CHANNELS = 8
"""In groups of fewer channels an integer convolution takes 3 to 10 times as long as a float one; with 16 it is even."""
_MUCH_WEIGHT = 1 << 16
"""At one place of an image a convolution with fewer weights takes less time than its two conversions."""


def is_slow(conv: ir.Node) -> bool:
    """Whether ``conv`` takes longer in integers even where they come and go at no cost: groups of a few channels each.

    Depthwise convolutions have a kernel of their own.
    """
    groups, (outputs, inputs, *_) = _groups(conv), _sizes(conv)
    return groups > 1 and max(inputs, outputs // groups) > 1 and min(inputs, outputs // groups) < _MANY_CHANNELS


def is_depthwise(conv: ir.Node) -> bool:
    """Whether ``conv`` is a depthwise one on images, for which the float kernel is the faster one.

    On signals, and in three dimensions, it is the other way round.
    """
    outputs, inputs, *kernel = _sizes(conv)
    return len(kernel) == 2 and inputs == 1 and _groups(conv) == outputs


def is_small(conv: ir.Node) -> bool:
    """Whether there is so little for ``conv`` to compute, such as on averages over an image, that conversions count."""
    shape = conv.outputs[0].shape
    at_one_place = shape is not None and all(size == 1 for size in shape[2:])
    return at_one_place and math.prod(_sizes(conv)) < _MUCH_WEIGHT


def _groups(conv: ir.Node) -> int:
    return conv.attributes.get_int("group", 1)


def _sizes(conv: ir.Node) -> tuple[int, ...]:
    """Of the weight, which is a constant: the channels it gives, those it reads for each, and the kernel."""
    return array_of(conv.inputs[1]).shape


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
    """A node that runs in integers, with its scheme and the tensors it reads as integers, by place."""

    info: NodeInfo
    scheme: OpScheme
    reads: Mapping[int, ir.Value]

    @property
    def activation(self) -> TensorScheme:
        """How what it reads is quantized."""
        assert self.scheme.activation is not None
        return self.scheme.activation


@dataclass(frozen=True)
class Layout:
    """``tensors`` in the order they are computed; ``left``: ops of the plan that stay in float, with the reason.

    ``candidates`` are the tensors that ops of the plan read, each with its scheme: what other layouts of a plan that has
    more ops in float may need the range of.
    """

    ops: Mapping[ir.Node, QuantizedOp]
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
    planned: Mapping[ir.Node, tuple[NodeInfo, OpScheme]],
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
        active = dict(sorted(planned.items(), key=lambda item: -race.products(item[1][0])))
    while True:
        wanted = _wanted(model.graph, active, kept)
        tensors = _quantized_tensors(model.graph, active, kept, wanted, options)
        dropped = _unpaid(active, tensors, wanted, options, race)
        if not dropped:
            break
        left |= {active.pop(node)[0].key: reason for node, reason in dropped.items()}
    active = {node: active[node] for node in planned if node in active}
    weighted = [node for node, (info, _) in planned.items() if info.weight is not None]
    if race is not None and weighted and not any(node in active for node in weighted):
        # A model that was to be quantized and would stay as it is helps nobody: it is at least smaller.
        logger.warning("integers make none of the %d ops with weights faster here; they serve its size", len(weighted))
        return lay_out(model, planned, kept, options)
    ops = {
        node: QuantizedOp(info, scheme, {i: input_of(node, i) for i in info.activations})
        for node, (info, scheme) in active.items()
    }
    candidates = [
        (input_of(node, i), scheme.activation)
        for node, (info, scheme) in planned.items()
        for i in info.activations
        if scheme.activation is not None
    ]
    return Layout(ops, tensors, left, candidates)


_Active = Mapping[ir.Node, tuple[NodeInfo, OpScheme]]


def _wanted(graph: ir.Graph, active: _Active, kept: set[ir.Node]) -> set[ir.Value]:
    """The tensors that some op of ``active`` reads, itself or behind nodes that pass integers on."""
    wanted: set[ir.Value] = set()
    for node in reversed(graph):
        if node in active:
            wanted |= {input_of(node, i) for i in active[node][0].activations}
        elif any(value in wanted for value in node.outputs):
            before = producer(node.inputs[0]) if node.inputs else None
            if passes_on(node, kept) or (before in active and folds_into_quantizer(node)):
                wanted.add(input_of(node, 0))
    return wanted


def _quantized_tensors(
    graph: ir.Graph, active: _Active, kept: set[ir.Node], wanted: set[ir.Value], options: StaticOptions
) -> dict[ir.Value, QuantizedTensor]:
    tensors: dict[ir.Value, QuantizedTensor] = {}
    for node in graph:
        output = node.outputs[0] if node.outputs else None
        if node in active and output is not None:
            info, scheme = active[node]
            integer_only = (
                info.op.output is Output.INTEGER and node.op_type not in options.optypes_to_exclude_output_quant
            )
            if info.op.output is Output.FLOAT or scheme.activation is None or not (integer_only or output in wanted):
                continue
            clip = next((user for user in output.consumers() if folds_into_quantizer(user)), None)
            value = output if clip is None else clip.outputs[0]
            tensors[value] = QuantizedTensor(output, scheme.activation, value, integer_only, clip)
        elif passes_on(node, kept) and any(value in wanted for value in node.outputs):
            tensor = tensors.get(input_of(node, 0))
            if tensor is not None:
                tensors |= {value: replace(tensor, raw=value, clip=None) for value in node.outputs}
    return tensors


_UNFED = "no op before it gives integers, so it would need them made for it"


def _unpaid(
    active: _Active,
    tensors: Mapping[ir.Value, QuantizedTensor],
    wanted: set[ir.Value],
    options: StaticOptions,
    race: IntegerRace | None,
) -> dict[ir.Node, str]:
    """The ops that would not profit from integers, with the reason."""
    reasons: dict[ir.Node, str] = {}
    for node, (info, scheme) in active.items():
        if node.name in options.named:
            continue
        read = (tensors.get(input_of(node, i)) for i in info.activations)
        fed = any(tensor is not None and tensor.integer_only for tensor in read)
        conv = node.op_type == "Conv" and options.on_cpu
        emits = node.outputs[0] in wanted
        told = None if race is None else _raced(race, info, scheme, fed, emits)
        if race is not None and not emits and options.quant_format == "QDQ" and (user := activation_behind(node)):
            told = f"the runtime computes it with the {user.op_type} behind it, and that in float only"
        if told is not None:
            if told:
                reasons[node] = told
            continue
        if info.tables and info.op.light:
            reasons[node] = "one side is constant: in float it costs as little and loses nothing"
        elif conv and is_slow(node):
            reasons[node] = "its groups have few channels each, which takes longer in integers than in float"
        elif info.op.light or (conv and is_depthwise(node)):
            if not fed:
                reasons[node] = _UNFED
            elif node.outputs[0] not in wanted:
                reasons[node] = "no op behind it takes integers, so its own would be turned back"
        elif conv and not fed and is_small(node):
            reasons[node] = _UNFED
    return reasons


def _raced(race: IntegerRace, info: NodeInfo, scheme: OpScheme, fed: bool, emits: bool) -> str | None:
    """What a race says against integers; None where there is none."""
    tensors = (scheme.weight, scheme.activation)
    place = race.place(info, fed, emits) if all(t is not None and t.dtype.bits == 8 for t in tensors) else None
    return None if place is None else race.reason_for_float(info, place)


def passes_on(node: ir.Node, kept: set[ir.Node]) -> bool:
    """Whether ``node`` gives out float values of its first input unchanged."""
    if not standard(node, *PASS_ON) or node in kept or not is_float(node.inputs[0]):
        return False
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    # With the places of the maxima asked for there is no integer kernel.
    return node.op_type != "MaxPool" or len(node.outputs) == 1
