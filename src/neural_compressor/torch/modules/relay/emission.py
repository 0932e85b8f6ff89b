"""Choice of the values of a traced graph that travel as 8-bit codes, with their scales and zero-points.

Int8 ops demand their inputs in calibrated qparams. A demand goes up through ops that give the same codes before and after
quantization. A value travels as codes if everything that reads it takes codes and all agree on the qparams; but a sum that
is wanted in float takes what others read as codes, turned back. Behind a ReLU or clamp codes have no place for what that
cuts off, so that all who read such a value must cut it off alike.

A residual addition of codes takes them in any scale, and emits in the qparams of what reads the sum: what a convolution
before it emits in is the range its output had in calibration. In float the sum would be more exact (by 2.5 dB at the end
of ResNet-20), and at batch 1 the network would take 1.3 times as long.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from neural_compressor.torch.modules import QuantAdd, QuantLinear, QuantModule, QuantMul
from neural_compressor.torch.modules.conv import QuantConv
from neural_compressor.torch.modules.kernels.quint8 import U8
from neural_compressor.torch.modules.relay.tracing import Traced

Shape = tuple[int, ...]


class Kind(Enum):
    """What a node is to codes."""

    INT8 = auto()
    ADD = auto()
    CLAMP = auto()
    MOVE = auto()
    FLOAT = auto()


@dataclass(frozen=True)
class Op:
    """A node's kind; ``inputs`` are the nodes it takes as codes, with the qparams it demands (None: any)."""

    kind: Kind
    inputs: tuple[tuple[fx.Node, U8 | None], ...] = ()
    bounds: tuple[float | None, float | None] = (None, None)
    module: QuantModule | None = None


@dataclass
class Emission:
    """What each node is to codes, and the qparams it emits in (None: floats)."""

    ops: dict[fx.Node, Op]
    qparams: dict[fx.Node, U8 | None] = field(default_factory=dict)

    @property
    def handed_on(self) -> int:
        """How many values go from op to op as codes that were float before."""
        made = (Kind.INT8, Kind.ADD)
        return sum(self.ops[n].kind in made and qparams is not None for n, qparams in self.qparams.items())


_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELU = (torch.relu, torch.relu_, F.relu, F.relu_)
_MOVES = (torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze)
_MOVE_METHODS = ("flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "detach")


def classify(traced: Traced, node: fx.Node, shapes: Mapping[fx.Node, Shape]) -> Op:
    """What ``node`` is to codes."""
    module = traced.module(node)
    inputs = node.all_input_nodes
    if isinstance(module, QuantModule):
        return _int8(module, node, shapes)
    if module is not None:
        return _module(module, node)
    first = tuple((n, None) for n in inputs[:1])
    name = str(node.target) if node.op == "call_method" else ""
    arguments = dict(enumerate(node.args)) | node.kwargs
    if (node.target in _ADDITIONS or name in ("add", "add_")) and _adds_alike(node, shapes):
        return Op(Kind.ADD, tuple((n, None) for n in inputs))
    if node.target is torch.cat:
        return Op(Kind.MOVE, tuple((n, None) for n in inputs))
    if len(inputs) != 1:
        return Op(Kind.FLOAT)
    if node.target in _RELU or name in ("relu", "relu_"):
        return Op(Kind.CLAMP, first, (0.0, None))
    if node.target is F.relu6:
        return Op(Kind.CLAMP, first, (0.0, 6.0))
    if node.target in (torch.clamp, F.hardtanh) or name in ("clamp", "clamp_"):
        hardtanh = node.target is F.hardtanh
        low = arguments.get(1, arguments.get("min_val" if hardtanh else "min", -1.0 if hardtanh else None))
        high = arguments.get(2, arguments.get("max_val" if hardtanh else "max", 1.0 if hardtanh else None))
        return _clamp(first, low, high)
    if node.target in (F.max_pool2d, torch.max_pool2d):
        return Op(Kind.FLOAT if arguments.get("return_indices") else Kind.MOVE, first)
    if node.target is F.pad:
        zeros = arguments.get("mode", arguments.get(2, "constant")) == "constant" and not arguments.get(
            "value", arguments.get(3)
        )
        return Op(Kind.MOVE if zeros else Kind.FLOAT, first)
    if node.target is operator.getitem:
        return Op(Kind.MOVE if inputs[0] in shapes else Kind.FLOAT, first)
    if node.target in _MOVES or name in _MOVE_METHODS:
        return Op(Kind.MOVE, first)
    return Op(Kind.FLOAT)


def _adds_alike(node: fx.Node, shapes: Mapping[fx.Node, Shape]) -> bool:
    """Whether a node adds two values of one shape, and does nothing else."""
    operands = node.all_input_nodes
    plain = len(operands) == len(node.args) == 2 and not node.kwargs
    return plain and all(n in shapes for n in operands) and shapes[operands[0]] == shapes[operands[1]]


def _module(module: nn.Module, node: fx.Node) -> Op:
    first = tuple((n, None) for n in node.all_input_nodes)
    if len(first) != 1 or module.training:
        return Op(Kind.FLOAT)
    if type(module) is nn.ReLU:
        return Op(Kind.CLAMP, first, (0.0, None))
    if type(module) in (nn.ReLU6, nn.Hardtanh):
        return _clamp(first, module.min_val, module.max_val)
    if type(module) is nn.Flatten:
        return Op(Kind.MOVE, first)
    if type(module) is nn.MaxPool2d and not module.return_indices:
        return Op(Kind.MOVE, first)
    return Op(Kind.FLOAT)


def _clamp(first: tuple[tuple[fx.Node, None], ...], low: Any, high: Any) -> Op:
    if any(not isinstance(bound, (int, float, type(None))) for bound in (low, high)):
        return Op(Kind.FLOAT)
    return Op(Kind.CLAMP, first, (low, high))


def _int8(module: QuantModule, node: fx.Node, shapes: Mapping[fx.Node, Shape]) -> Op:
    """An op whose kernel takes codes, or a call like any other."""
    tensors = [a for a in node.args if isinstance(a, fx.Node) and len(shapes.get(a, ())) > 1]
    if module.input_qparams is None or node.kwargs or len(tensors) != len(node.args):
        return Op(Kind.FLOAT)
    if isinstance(module, QuantConv):
        batched = len(shapes[tensors[0]]) == module.dims + 2
        if not batched or any(module.outer_padding):
            return Op(Kind.FLOAT)
    elif isinstance(module, (QuantAdd, QuantMul)):
        if len(tensors) != 2 or shapes[tensors[0]] != shapes[tensors[1]]:
            return Op(Kind.FLOAT)
        return Op(Kind.INT8, tuple(zip(tensors, (module._u8("a"), module._u8("b")), strict=True)), module=module)
    elif not isinstance(module, QuantLinear):
        return Op(Kind.FLOAT)
    return Op(Kind.INT8, ((tensors[0], module.input_qparams),), module=module)


@dataclass(frozen=True)
class _Demand:
    """What the readers of a value want: codes in ``qparams``, or in any (None); ``soft`` where floats cost no more.

    ``bounds`` are those beyond which they have no use for it.
    """

    qparams: U8 | None = None
    soft: bool = False
    bounds: tuple[float | None, float | None] = (None, None)


def assign(traced: Traced, shapes: Mapping[fx.Node, Shape]) -> Emission:
    """Decide for every node of the graph."""
    found = Emission({node: classify(traced, node, shapes) for node in traced.graph.nodes})
    demands: dict[fx.Node, _Demand | None] = {}
    for node in reversed(traced.graph.nodes):
        demands[node] = _demand(node, found.ops, demands) if node in shapes else None
    for node in traced.graph.nodes:
        found.qparams[node] = _emitted(node, found, demands[node])
    return found


def _demand(node: fx.Node, ops: Mapping[fx.Node, Op], demands: Mapping[fx.Node, _Demand | None]) -> _Demand | None:
    """What the readers of a node agree on; None where one needs floats."""
    found: list[_Demand] = []
    bounds: set[tuple[float | None, float | None]] = set()
    for user in node.users:
        op, further = ops[user], demands[user]
        if op.kind is Kind.INT8:
            # The linear kernel that returns floats also takes floats, and quantizes them itself.
            soft = isinstance(op.module, QuantLinear) and further is None
            found += [_Demand(wanted, soft) for source, wanted in op.inputs if source is node and wanted is not None]
        elif op.kind is Kind.ADD:
            bounds.add((None, None))
            if further is not None and further.qparams is not None and not further.soft:
                found.append(_Demand())
        elif op.kind is Kind.FLOAT or further is None:
            return None
        else:
            found.append(further if op.kind is not Kind.CLAMP else replace(further, bounds=op.bounds))
    bounds |= {demand.bounds for demand in found}
    if len(bounds) > 1:
        return None
    wanted = {demand.qparams for demand in found if demand.qparams is not None}
    if len(wanted) > 1 or not found:
        return None
    if not wanted:
        return _Demand(bounds=found[0].bounds)
    return _Demand(wanted.pop(), all(demand.soft for demand in found), found[0].bounds)


def _emitted(node: fx.Node, found: Emission, demand: _Demand | None) -> U8 | None:
    """The qparams a node emits in; those of the nodes before it are known."""
    op = found.ops[node]
    if demand is None:
        return None
    before = [found.qparams[source] for source, _ in op.inputs]
    if op.kind is Kind.ADD:
        return demand.qparams if all(qparams is not None for qparams in before) else None
    if demand.qparams is None:
        own = op.module.output_qparams if op.module is not None else None
        return own if op.kind is Kind.INT8 else before[0] if len(before) == 1 and op.kind is not Kind.FLOAT else None
    from_codes = op.kind is Kind.INT8 or any(qparams is not None for qparams in before)
    return demand.qparams if from_codes or not demand.soft else None
