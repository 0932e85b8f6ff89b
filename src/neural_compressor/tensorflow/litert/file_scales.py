"""Scales in a LiteRT file: the op that can take them up, and multiplications where none can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, LiteOp

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
    code = _code(model)
    operators = []
    for index, operator in enumerate(graph.operators):
        if index in factors:
            given = int(operator.inputs[0])
            name = f"{lite.names[int(operator.outputs[0])].split(';')[0]}{SUFFIX}"
            constant = _tensor(model, f"{name}.factors", np.asarray(factors[index], np.float32))
            made = copy.copy(graph.tensors[given])
            made.name, made.buffer = name.encode(), 0
            graph.tensors.append(made)
            operator.inputs = [len(graph.tensors) - 1, *list(operator.inputs)[1:]]
            operators.append(_multiplication(code, [given, constant], len(graph.tensors) - 1))
        operators.append(operator)
    graph.operators = operators
    return LiteGraph.bytes_of(model)


def _code(model: Any) -> int:
    """The place of MUL among the kinds of ops of a file."""
    for place, each in enumerate(model.operatorCodes):
        if each.builtinCode == schema.BuiltinOperator.MUL:
            return place
    added = schema.OperatorCodeT()
    added.builtinCode = added.deprecatedBuiltinCode = schema.BuiltinOperator.MUL
    added.version = 1
    model.operatorCodes.append(added)
    return len(model.operatorCodes) - 1


def _tensor(model: Any, name: str, values: Any) -> int:
    buffer, tensor = schema.BufferT(), schema.TensorT()
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.name, tensor.shape, tensor.buffer = name.encode(), list(values.shape), len(model.buffers) - 1
    tensor.type = schema.TensorType.FLOAT32
    model.subgraphs[0].tensors.append(tensor)
    return len(model.subgraphs[0].tensors) - 1


def _multiplication(code: int, inputs: list[int], output: int) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex, made.inputs, made.outputs = code, inputs, [output]
    made.builtinOptionsType, made.builtinOptions = schema.BuiltinOptions.MulOptions, schema.MulOptionsT()
    return made
