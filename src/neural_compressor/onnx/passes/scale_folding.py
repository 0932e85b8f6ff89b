"""Folding of a factor by channel into the constants of the nodes that produce a value, with no node left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.linear_ops import as_linear
from neural_compressor.onnx.graph.queries import array_of, constant, is_constant, is_float, optional_input, producer

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_CHANNEL_NORMS = ("BatchNormalization", "InstanceNormalization")
_HOMOGENEOUS = ("Relu", "LeakyRelu", "Identity")
"""A positive factor may as well be applied before them; to the pools only along axis 1."""
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


@dataclass(frozen=True)
class Fold:
    """A constant input of a node that is to be multiplied by the factor, or divided by it, in ``shape``."""

    node: ir.Node
    index: int
    shape: tuple[int, ...]
    divide: bool = False


Folds = tuple[Fold, ...]


@dataclass(frozen=True)
class Channels:
    """Where a value has its channels: on axis 1 of ``rank`` dimensions, or on axis -1."""

    count: int
    axis: int
    rank: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which one number a channel lines up with the value."""
        return (-1, *[1] * (self.rank - 2)) if self.axis == 1 else (-1,)


def find_folds(value: ir.Value, channels: Channels, consumers: int = 1) -> Folds | None:
    """The constants that bring a positive factor onto the channels of ``value``; None where it cannot be done exactly.

    ``consumers`` is how many consumers want the factor: with more than that the others would see it too.
    """
    node = value.producer()
    if node is None or node.outputs[0] is not value or value.is_graph_output() or not is_float(value):
        return None
    if len(value.uses()) != consumers:
        return None
    kind, last = node.op_type, channels.axis == -1
    if kind in _NORMS:
        scale = constant(node.inputs[1])
        return _into(node, (1, 2), (-1,)) if last and scale is not None and scale.ndim == 1 else None
    if kind in _CHANNEL_NORMS:
        training = node.attributes.get_int("training_mode", 0) == 1
        return None if last or training else _into(node, (1, 2), (-1,))
    if kind in _HOMOGENEOUS or (kind in _POOLS and not last):
        source = node.inputs[0]
        return None if source is None else find_folds(source, channels)
    if kind in ("Mul", "Div"):
        return _into_product(node, channels)
    if kind in ("Add", "Sub"):
        return _into_sum(node, channels)
    return _into_linear(node, channels)


def apply_folds(editor: GraphEditor, folds: Sequence[Fold], factor: np.ndarray) -> None:
    """Multiply what :func:`find_folds` found by ``factor``, one number a channel."""
    for fold in folds:
        array = array_of(fold.node.inputs[fold.index])
        shaped = factor.reshape(fold.shape)
        editor.set_constant(fold.node, fold.index, array / shaped if fold.divide else array * shaped)


def _into(node: ir.Node, indices: Sequence[int], shape: tuple[int, ...], divide: bool = False) -> Folds | None:
    """Those of the inputs that are given, where all of them are constants."""
    given = [i for i in indices if optional_input(node, i) is not None]
    known = all(is_float(node.inputs[i]) and is_constant(node.inputs[i]) for i in given)
    return tuple(Fold(node, i, shape, divide) for i in given) if known and given else None


def _into_product(node: ir.Node, channels: Channels) -> Folds | None:
    is_division = node.op_type == "Div"
    own = _into(node, (1,), channels.shape, divide=is_division) or _into(node, (0,), channels.shape)
    own = own or _before(node, 0, channels)
    return own if is_division else own or _before(node, 1, channels)


def _into_sum(node: ir.Node, channels: Channels) -> Folds | None:
    """Both terms of a sum need the factor."""
    for fixed, moving in ((1, 0), (0, 1)):
        if (own := _into(node, (fixed,), channels.shape)) is not None:
            rest = _before(node, moving, channels)
            return None if rest is None else own + rest
    return None


def _into_linear(node: ir.Node, channels: Channels) -> Folds | None:
    if channels.axis == -1 and (scales := _weight_scales(node)) is not None:
        return scales
    op = as_linear(node)
    if node.op_type not in ("MatMul", "Gemm", "Conv") or op is None or op.axis != channels.axis:
        return None
    shape = tuple(-1 if i == op.outputs else 1 for i in range(op.weight.ndim))
    return _with_bias(node, 2, _into(node, (1,), shape))


def _with_bias(node: ir.Node, place: int, folds: Folds | None) -> Folds | None:
    """``folds``, and the bias of ``node`` where it has one."""
    if folds is None or optional_input(node, place) is None:
        return folds
    bias = _into(node, (place,), (-1,))
    return None if bias is None else folds + bias


def _weight_scales(node: ir.Node) -> Folds | None:
    """The scales of a weight quantized in blocks, which has them for each of its outputs."""
    if node.op_type == "MatMulNBits":
        return _with_bias(node, 5, _into(node, (2,), (-1, 1)))
    weight = producer(node.inputs[1], "DequantizeLinear") if node.op_type == "MatMul" else None
    if weight is None or "block_size" not in weight.attributes:
        return None
    # With blocks along the first axis the scales are (blocks, outputs).
    return _into(weight, (1,), (1, -1)) if weight.attributes.get_int("axis", 1) == 0 else None


def _before(node: ir.Node, index: int, channels: Channels) -> Folds | None:
    """The factor on an operand that has all the channels, not one value for all of them."""
    source = node.inputs[index]
    if source is None or source.shape is None or len(source.shape) < channels.axis % channels.rank + 1:
        return None
    return find_folds(source, channels) if source.shape[channels.axis] == channels.count else None
