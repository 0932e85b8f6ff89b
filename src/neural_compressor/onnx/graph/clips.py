"""Relu and Clip done by the quantizer behind them, which cuts off what is outside of its range."""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.onnx.graph.graph import is_constant, standard
from neural_compressor.onnx.graph.integer_params import IntegerParams
from neural_compressor.onnx.graph.op_table import CLIPS
from neural_compressor.onnx.graph.value_bounds import clip_bounds


def folds(node: ir.Node) -> bool:
    """Whether ``node`` is a Relu or Clip with fixed bounds that alone reads what the op before it gives."""
    if not standard(node, *CLIPS) or any(v is not None and not is_constant(v) for v in node.inputs[1:]):
        return False
    value = node.inputs[0]
    before = None if value is None else value.producer()
    if value is None or before is None or before.graph is not node.graph:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()


def cuts_off(params: IntegerParams, clip: ir.Node) -> bool:
    """Whether a quantizer keeps values within the bounds of ``clip`` by itself, to within half a step."""
    (low, high), (least, most) = params.limits, clip_bounds(clip)
    slack = float(params.scale) / 2
    return low >= least - slack and high <= most + slack
