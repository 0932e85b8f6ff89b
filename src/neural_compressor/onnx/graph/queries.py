"""Questions to the nodes and values of a graph, and errors that name a node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value never changes."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of a value that never changes, else None."""
    if value is None or value.const_value is None or not is_constant(value):
        return None
    return value.const_value.numpy()


def input_of(node: ir.Node, place: int) -> ir.Value:
    """The input of ``node`` at ``place``, where there is known to be one."""
    value = node.inputs[place]
    assert value is not None
    return value


def optional_input(node: ir.Node, place: int) -> ir.Value | None:
    """The input of ``node`` at ``place``, None where it is left out."""
    return node.inputs[place] if len(node.inputs) > place else None


def graph_of(item: ir.Node | ir.Value) -> ir.Graph:
    """The graph of a node or value, where it is known to be in one."""
    assert isinstance(item.graph, ir.Graph)
    return item.graph


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that gives ``value``; where ``op_types`` are named, if it is one of these standard operators."""
    node = None if value is None else value.producer()
    return None if node is None or (op_types and not standard(node, *op_types)) else node


def array_of(value: ir.Value | None) -> np.ndarray:
    """The array of a value that is known to be constant."""
    array = constant(value)
    assert array is not None
    return array


def is_float(value: ir.Value | None) -> bool:
    """Whether the value is known to be float32."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def standard(node: ir.Node, *op_types: str) -> bool:
    """Whether ``node`` is one of the standard operators named."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def only_consumer(node: ir.Node) -> ir.Node | None:
    """The one node of the same graph that reads what ``node`` gives, where nothing else does."""
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0].node.graph is not node.graph:
        return None
    return uses[0].node


def with_inner(*nodes: ir.Node) -> Iterator[ir.Node]:
    """``nodes``, and those in their branches and loops."""
    return ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=nodes))


Bounds = tuple[float, float]
_NONE: Bounds = (-math.inf, math.inf)


def consumer_bounds(value: ir.Value) -> Bounds:
    """The bounds beyond which all consumers of ``value`` see the bound itself."""
    uses = tuple(value.uses())
    if value.is_graph_output() or not uses:
        return _NONE
    bounds = [_seen_by(use.node, value) for use in uses]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def clip_bounds(node: ir.Node) -> Bounds:
    """The bounds of a Relu, or of a Clip with constant ones."""
    if standard(node, "Relu"):
        return 0.0, math.inf
    low, high = map(constant, (*node.inputs[1:], None, None)[:2])
    return -math.inf if low is None else low.item(), math.inf if high is None else high.item()


def _seen_by(node: ir.Node, value: ir.Value) -> Bounds:
    if standard(node, "Relu", "Clip") and node.inputs[0] is value:
        return clip_bounds(node)
    if standard(node, "HardSigmoid"):
        return _hard_sigmoid(node)
    if standard(node, "HardSwish"):
        return -3.0, math.inf
    if standard(node, "Mul"):
        # Hard swish: where its gate is shut, the value itself does not show.
        for operand in node.inputs:
            gate = producer(operand, "HardSigmoid")
            if gate is not None and gate.inputs[0] is value and operand is not value:
                return _hard_sigmoid(gate)[0], math.inf
    return _NONE


def _hard_sigmoid(node: ir.Node) -> Bounds:
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 else _NONE


def weight_refusal(node: ir.Node, place: int) -> str | None:
    """Why the input at ``place`` is no weight that can be quantized, or None where it is one."""
    value = optional_input(node, place)
    if value is None or value.const_value is None or value.is_graph_input():
        return "its weight is not a constant"
    kind = value.const_value.dtype
    return None if kind == ir.DataType.FLOAT else f"its weight is {kind.name}, and FLOAT is needed"


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Errors raised inside begin with ``where``."""
    try:
        yield
    except (QuantizationError, CalibrationError, ConfigError) as error:
        raise type(error)(f"{where}: {error}") from error


def at_node(*names: str | None) -> AbstractContextManager[None]:
    """Errors raised inside say which nodes were at work."""
    return errors_at(f"{'node' if len(names) == 1 else 'nodes'} {', '.join(map(repr, names))}")
