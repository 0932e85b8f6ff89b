"""The order in which integer kernels of ONNX Runtime sum products, and weights that no sum of two overflows on.

On x86 CPUs without VNNI a product of uint8 activations with int8 weights is summed in pairs, and a sum that does not fit is
cut off without a word. So is one of int8 activations between quantizers, of which the runtime makes uint8 ones on loading.
Unsigned weights, int8 activations of integer ops, depthwise convolutions, ConvInteger and a weight on the left of a product
are exact. Which weights meet in a sum was found by giving the kernels of ONNX Runtime 1.31 one pair of large weights after
the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.config.recipes import TARGET_CPUS
from neural_compressor.onnx.graph.ops import NodeInfo, describe
from neural_compressor.onnx.graph.queries import standard
from neural_compressor.schemes import OpKey, OpScheme, any_cpu_op

ANY, VNNI = TARGET_CPUS


@dataclass(frozen=True)
class SumOrder:
    """The axes of a weight as a kernel goes over it: those of ``outputs``, and those it sums over, the innermost last."""

    outputs: tuple[int, ...]
    summed: tuple[int, ...]

    def rows(self, weight: np.ndarray) -> np.ndarray:
        """``weight`` as (outputs, inputs), with neighbours in a sum side by side.

        >>> conv_order(4).rows(np.arange(8).reshape(1, 2, 2, 2)).tolist()
        [[0, 4, 1, 5, 2, 6, 3, 7]]
        """
        count = math.prod(weight.shape[axis] for axis in self.outputs)
        return weight.transpose(self.outputs + self.summed).reshape(count, -1)

    def restored(self, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A weight of ``shape`` from what :meth:`rows` makes of it."""
        axes = self.outputs + self.summed
        return np.ascontiguousarray(rows.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes)))


def matrix_order(rank: int, transposed: bool = False) -> SumOrder:
    """Of the right factor of a product: (..., inputs, outputs), or the other way round."""
    if rank == 1:
        return SumOrder((), (0,))
    last, before = (rank - 2, rank - 1) if transposed else (rank - 1, rank - 2)
    return SumOrder((*range(rank - 2), last), (before,))


def conv_order(rank: int) -> SumOrder:
    """Of a convolution's (outputs, inputs of a group, *kernel): place by place, at each one channel after the other."""
    return SumOrder((0,), (*range(2, rank), 1))


def is_depthwise(shape: tuple[int, ...], groups: int) -> bool:
    """Whether each channel of a convolution with a weight of ``shape`` is filtered alone, for which there is a kernel."""
    return shape[1] == 1 and groups == shape[0]


def sum_order(info: NodeInfo) -> SumOrder | None:
    """How the integer kernel of a float Conv, MatMul or Gemm adds in pairs; None where it does not."""
    node, weight = info.node, info.weight
    if weight is None or weight.shape is None or info.weight_index != 1:
        return None
    shape = weight.shape.numpy()
    if standard(node, "Conv"):
        return None if is_depthwise(shape, node.attributes.get_int("group", 1)) else conv_order(len(shape))
    if standard(node, "MatMul", "Gemm"):
        return matrix_order(len(shape), bool(node.attributes.get_int("transB", 0)))
    return None


_DYNAMIC = ("MatMul", "Gemm", "LSTM", "Attention")


def adds_in_pairs(node: ir.Node, mode: str) -> bool:
    """Whether the integer kernel of a float ``node`` quantized in ``mode`` adds products in pairs."""
    if mode == "dynamic":
        return node.op_type in _DYNAMIC
    info = describe(node)
    return isinstance(info, NodeInfo) and sum_order(info) is not None


def for_any_cpu(node: ir.Node, scheme: OpScheme) -> OpScheme:
    """``scheme`` with a weight on which the CPU kernel of ``node`` cannot overflow; the same where it could not before."""
    safe = any_cpu_op(scheme)
    return safe if safe != scheme and adds_in_pairs(node, scheme.mode) else scheme


def target_cpu(model: ir.Model, ops: Mapping[OpKey, OpScheme]) -> str:
    """The CPUs that a float ``model``, quantized as ``ops`` say, gives the same on: ``any`` or ``vnni``."""
    nodes = {(str(node.name), node.op_type): node for node in model.graph.all_nodes()}
    safe = all(key not in nodes or for_any_cpu(nodes[key], scheme) == scheme for key, scheme in ops.items())
    return ANY if safe else VNNI
