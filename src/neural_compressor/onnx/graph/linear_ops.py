"""Products of an activation with a constant weight, seen from the channels of the activation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.queries import array_of, input_of, is_constant, is_float, optional_input
from neural_compressor.registry import close_matches

LINEAR_TYPES = ("Gemm", "Conv", "MatMul", "FusedConv")
_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True)
class LinearOp:
    """A node that multiplies channels of its first input with the constant of its second.

    ``axis`` is where the activation has its channels, ``outputs`` where the weight has its output channels.
    """

    node: ir.Node
    axis: int
    outputs: int

    @property
    def input(self) -> ir.Value:
        """The activation."""
        return input_of(self.node, 0)

    @property
    def weight(self) -> np.ndarray:
        """The weight as the node has it."""
        return array_of(self.node.inputs[1])

    def rows(self, array: np.ndarray) -> np.ndarray:
        """An array shaped as the weight with what each input channel meets as a row."""
        if self.axis == 1:  # a convolution: (outputs, channels of a group, ...), the groups one after another
            split = array.reshape(self._groups, -1, array.shape[1], math.prod(array.shape[2:]))
            return np.moveaxis(split, 2, 1).reshape(self._groups * array.shape[1], -1)
        return array if self.outputs == 1 else array.T

    def scaled(self, scale: np.ndarray) -> np.ndarray:
        """The weight with what each input channel meets multiplied by its scale."""
        weight = self.weight
        if self.axis == 1:
            by_output = np.repeat(scale.reshape(self._groups, -1), weight.shape[0] // self._groups, axis=0)
            return np.asarray(weight * by_output.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)))
        return np.asarray(weight * (scale[:, None] if self.outputs == 1 else scale))

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1)


def linear_ops(model: ir.Model, op_types: Collection[str] = LINEAR_TYPES) -> Iterator[LinearOp]:
    """The linear nodes of the main graph among ``op_types``, in the order they run."""
    for name in op_types:
        if name not in LINEAR_TYPES:
            raise ConfigError(f"op type {name!r} cannot be smoothed; {close_matches(str(name), LINEAR_TYPES)}")
    for node in model.graph:
        if node.op_type in op_types and node.domain in _DOMAINS and (op := as_linear(node)) is not None:
            yield op


def as_linear(node: ir.Node) -> LinearOp | None:
    """``node`` as a linear op, where it is one with a float32 weight that never changes."""
    weight = optional_input(node, 1)
    if (
        node.op_type not in LINEAR_TYPES
        or not is_float(weight)
        or not is_constant(weight)
        or is_constant(node.inputs[0])
    ):
        return None
    assert weight is not None
    assert weight.const_value is not None
    if node.op_type in ("Conv", "FusedConv"):
        return LinearOp(node, axis=1, outputs=0)
    if len(weight.const_value.shape) != 2 or node.attributes.get_int("transA", 0) == 1:
        return None
    return LinearOp(node, axis=-1, outputs=0 if node.attributes.get_int("transB", 0) else 1)
