"""Between which values a tensor makes a difference to what reads it: outside of these no integers are needed."""

from __future__ import annotations

import math

import onnx_ir as ir

from neural_compressor.onnx.graph.graph import constant, standard

Bounds = tuple[float, float]
_NONE: Bounds = (-math.inf, math.inf)


def reader_bounds(value: ir.Value) -> Bounds:
    """The bounds beyond which all readers of ``value`` see the bound itself."""
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
            gate = None if operand is None else operand.producer()
            if gate is not None and standard(gate, "HardSigmoid") and gate.inputs[0] is value and operand is not value:
                return _hard_sigmoid(gate)[0], math.inf
    return _NONE


def _hard_sigmoid(node: ir.Node) -> Bounds:
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 else _NONE
