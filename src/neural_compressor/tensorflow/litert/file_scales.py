"""Scales in a LiteRT file: the op that can take them up, and multiplications where none can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, LiteOp, new_constant, new_op

_HOMOGENEOUS = ("RELU", "MAX_POOL_2D", "AVERAGE_POOL_2D", "PAD")
"""Ops that give twice as much for twice as much, channel by channel."""
_POSITIVE = (schema.ActivationFunctionType.NONE, schema.ActivationFunctionType.RELU)
SUFFIX = ".smooth"
"""What the name of the multiplication before an op ends in."""


def makers_chain(lite: LiteGraph, tensor: int, read_once: Callable[[int], bool]) -> LiteOp | None:
    """The op that makes the channels of ``tensor`` for one reader alone, through nothing but what scales go through."""
    while read_once(tensor) and tensor not in lite.outputs:
        op = lite.producers.get(tensor)
        if op is None:
            return None
        how = lite.options(op)
        if getattr(how, "fusedActivationFunction", schema.ActivationFunctionType.NONE) not in _POSITIVE:
            return None
        if op.kind not in _HOMOGENEOUS and not (op.kind == "MEAN" and _keeps_channels(lite, op)):
            return op
        tensor = op.inputs[0]
    return None


def _keeps_channels(lite: LiteGraph, op: LiteOp) -> bool:
    rank = len(lite.shape(op.inputs[0]))
    axes = lite.constant(op.constants[0]) if op.constants else None
    return axes is not None and rank - 1 not in {int(axis) % rank for axis in axes.view(np.int32)}


def with_multiplications(lite: LiteGraph, factors: Mapping[int, Any]) -> bytes:
    """The file with a MUL by ``factors``, one a channel, before the first input of ops, which go by their index."""
    model = lite.model_copy()
    graph = model.subgraphs[0]
    operators = []
    for index, operator in enumerate(graph.operators):
        if index in factors:
            given = int(operator.inputs[0])
            name = f"{lite.names[int(operator.outputs[0])].split(';')[0]}{SUFFIX}"
            values = np.asarray(factors[index], np.float32)
            constant = new_constant(model, graph, f"{name}.factors", values, schema.TensorType.FLOAT32)
            made = copy.copy(graph.tensors[given])
            made.name, made.buffer = name.encode(), 0
            graph.tensors.append(made)
            operator.inputs = [len(graph.tensors) - 1, *list(operator.inputs)[1:]]
            product = new_op(model, "MUL", [given, constant], [len(graph.tensors) - 1])
            product.builtinOptionsType, product.builtinOptions = schema.BuiltinOptions.MulOptions, schema.MulOptionsT()
            operators.append(product)
        operators.append(operator)
    graph.operators = operators
    return LiteGraph.bytes_of(model)
