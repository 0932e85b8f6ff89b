"""Op types that ONNX Runtime computes in integers, and the nodes of a model that can be quantized statically.

Those before a logarithm had better not be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from neural_compressor.onnx.graph.queries import is_constant, is_float, producer, standard
from neural_compressor.schemes import OpKey


class Output(Enum):
    """What an op running in integers gives."""

    INTEGER = "integers only: without a quantizer behind it the op runs in float"
    EITHER = "integers or floats, at the same cost"
    FLOAT = "floats: there is no integer kernel, and only the size of the weight is gained"


@dataclass(frozen=True)
class OpType:
    """Inputs by their place: ``activations`` (None: all), ``weight`` (constant), ``bias`` (constant, may be missing).

    ``light`` ops do little for each value: integers pay for them only where their neighbours have integers already.
    """

    activations: tuple[int, ...] | None
    weight: int | None = None
    bias: int | None = None
    output: Output = Output.INTEGER
    light: bool = False


_LIGHT = OpType(activations=(0,), light=True)
_LIGHT_PAIR = OpType(activations=(0, 1), light=True)
_PRODUCT = OpType(activations=(0, 1), output=Output.EITHER)

OP_TYPES: dict[str, OpType] = {
    "Conv": OpType(activations=(0,), weight=1, bias=2),
    "ConvTranspose": OpType(activations=(0,), weight=1, bias=2, output=Output.FLOAT),
    # Either side of a product may be the weight, or neither.
    "MatMul": _PRODUCT,
    "Gemm": OpType(activations=(0, 1), bias=2, output=Output.EITHER),
    "Gather": OpType(activations=(), weight=0, output=Output.FLOAT),
    "Add": _LIGHT_PAIR,
    "Mul": _LIGHT_PAIR,
    "Concat": OpType(activations=None, light=True),
    "AveragePool": _LIGHT,
    "GlobalAveragePool": _LIGHT,
    "LeakyRelu": _LIGHT,
    "Sigmoid": _LIGHT,
    "Softmax": _LIGHT,
}
"""The op types that a plan may quantize statically."""

PASS_ON = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "DepthToSpace"),
        *("Slice", "Split", "Gather", "GatherElements", "MaxPool", "ReduceMax", "ReduceMin", "Resize"),
    }
)
"""Op types that give out values they take in, so that integers pass with the scale they came with."""

CLIPS = ("Relu", "Clip")
"""Op types that a quantizer behind them may do the work of, since it cuts off what is outside of its range."""


@dataclass(frozen=True, eq=False)
class NodeInfo:
    """A node that can be quantized, and the places of its inputs by what they are.

    ``axis`` is the weight's axis that may have a scale a channel, None where the runtime takes one scale only.
    ``tables`` are inputs that are constant without being weights, such as one side of an Add.
    """

    node: ir.Node
    op: OpType
    activations: tuple[int, ...]
    weight_index: int | None = None
    axis: int | None = None
    bias_index: int | None = None
    tables: tuple[int, ...] = ()

    @property
    def key(self) -> OpKey:
        """What a plan calls the node."""
        return str(self.node.name), self.node.op_type

    @property
    def weight(self) -> ir.Value | None:
        """The constant input that holds what was learnt."""
        return None if self.weight_index is None else self.node.inputs[self.weight_index]

    @property
    def bias(self) -> ir.Value | None:
        """The constant that is added to the result."""
        return None if self.bias_index is None else self.node.inputs[self.bias_index]


def quantizable_nodes(model: ir.Model) -> dict[OpKey, NodeInfo]:
    """The nodes that a plan may name, in the order they run."""
    return {info.key: info for info in map(describe, model.graph) if isinstance(info, NodeInfo)}


def unquantizable_nodes(model: ir.Model) -> dict[OpKey, str]:
    """Nodes of quantizable op types that have to stay in float, with the reason."""
    reasons = {(str(n.name), n.op_type): reason for n in model.graph if isinstance(reason := describe(n), str)}
    inner = (n for graph in model.graph.subgraphs() for n in graph if standard(n, *OP_TYPES))
    return reasons | {(str(n.name), n.op_type): "it is inside the body of an If, Loop or Scan" for n in inner}


def describe(node: ir.Node) -> NodeInfo | str | None:
    """What there is to quantize in ``node``, or why nothing; None where the question does not arise."""
    if not standard(node, *OP_TYPES):
        return None
    op = OP_TYPES[node.op_type]
    places = tuple(range(len(node.inputs)) if op.activations is None else op.activations)
    fixed = tuple(i for i in places if _is_fixed(node.inputs[i]))
    activations = tuple(i for i in places if i not in fixed)
    weight = max(fixed) if node.op_type in ("MatMul", "Gemm") and fixed else op.weight
    bias = op.bias if op.bias is not None and len(node.inputs) > op.bias and node.inputs[op.bias] else None
    computed = (*places, *(() if weight is None else (weight,)))
    if node.op_type == "Gather" and not (is_constant(node.inputs[0]) and is_float(node.inputs[0])):
        return None  # it only passes on what it is given
    kinds = [value.dtype if (value := node.inputs[i]) else None for i in computed]
    if computed and all(kind is not None and kind.is_integer() for kind in kinds):
        return None  # it reckons with shapes
    behind = (user for value in node.outputs for user in value.consumers())
    if any(producer(value, "DequantizeLinear") for value in node.inputs) or any(
        standard(user, "QuantizeLinear") for user in behind
    ):
        return "it is quantized already"
    # Inputs of these ops are of one type, so that one that is known tells of the others.
    if set(kinds) - {None} != {ir.DataType.FLOAT}:
        return "its inputs are not known to be float32"
    if places and not activations:
        return "all its inputs are constant"
    if weight is not None and not _is_fixed(node.inputs[weight]):
        return "its weight is not constant"
    if bias is not None and not is_constant(node.inputs[bias]):
        return "its bias is not constant"
    if node.op_type == "Gemm" and weight != 1 and bias is not None and node.attributes.get_float("alpha", 1.0) != 1:
        return "its factor alpha has no constant to go into"
    if any(0 in v.const_value.shape.numpy() for i in computed if (v := node.inputs[i]) and v.const_value is not None):
        return "one of its constants is empty"
    axis = None if weight is None else _channel_axis(node, weight)
    tables = tuple(i for i in fixed if i != weight)
    return NodeInfo(node, op, activations, weight, axis, bias, tables)


def _channel_axis(node: ir.Node, weight: int) -> int | None:
    value = node.inputs[weight]
    shape = None if value is None else value.const_value.shape if value.const_value is not None else value.shape
    if shape is None:
        return None
    rank = len(shape)
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Gather":
        # A scale for each slice that is looked up would have to be looked up itself; the last axis comes through as it is.
        return rank - 1 if node.attributes.get_int("axis", 0) % rank != rank - 1 else None
    if weight == 0 or rank != 2:
        return None
    return 0 if node.attributes.get_int("transB", 0) else 1


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is constant, or the transpose of one that is."""
    before = producer(value, "Transpose", "Identity")
    return is_constant(value) if before is None else _is_fixed(before.inputs[0])


def folds_into_quantizer(node: ir.Node) -> bool:
    """Whether ``node`` is a Relu or Clip with fixed bounds that alone reads what the op before it gives."""
    if not standard(node, *CLIPS) or any(v is not None and not is_constant(v) for v in node.inputs[1:]):
        return False
    value, before = node.inputs[0], producer(node.inputs[0])
    if value is None or before is None or before.graph is not node.graph:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


BEFORE_LOGARITHM = "a logarithm reads it, to which small values matter as much as large ones"
"""Why such a node stays in float."""
_POWER = ("Abs", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sqrt")
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_KEEPING = (
    *("Add", "Cast", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Identity", "Max", "Mul", "Neg", "Pad"),
    *("ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
)


def before_logarithm(model: ir.Model) -> dict[OpKey, str]:
    """The nodes between an input and a logarithm of the power of what they compute, with why they stay in float.

    A logarithm gives small values the weight of large ones. Integers of 8 bits have one step for all, some 48 dB below the
    largest value, and spectra of sound reach over 80 dB and more.

    The way back from a logarithm ends at what is no part of a transform, such as an activation function: that of
    probabilities, or at the end of a network, is none of these.
    """
    found: dict[OpKey, str] = {}
    for logarithm in model.graph:
        if standard(logarithm, "Log"):
            nodes = _transform(logarithm)
            squares = (node for node in nodes if standard(node, "Mul") and node.inputs[0] is node.inputs[1])
            if any(standard(node, *_POWER) for node in nodes) or any(squares):
                found |= {(str(node.name), node.op_type): BEFORE_LOGARITHM for node in nodes}
    return found


def _transform(logarithm: ir.Node) -> dict[ir.Node, None]:
    """The nodes that lead to a logarithm, the last first."""
    nodes: dict[ir.Node, None] = {}
    waiting = list(logarithm.inputs)
    while waiting:
        value = waiting.pop()
        node = producer(value, *_POWER, *_LINEAR, *_KEEPING)
        if node is not None and node not in nodes:
            nodes[node] = None
            waiting += node.inputs
    return nodes
