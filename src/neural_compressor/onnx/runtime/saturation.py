"""Kernels of ONNX Runtime that add two products in 16 bits, and weights they cannot overflow on.

On x86 CPUs without VNNI a product of uint8 activations with int8 weights is summed in pairs, and a sum that does not fit is
cut off without a word. So is one of int8 activations between quantizers, of which the runtime makes uint8 ones on loading.
Unsigned weights, int8 activations of integer ops, depthwise convolutions, ConvInteger and a weight on the left of a product
are exact. Which weights meet in a sum was found by giving the kernels of ONNX Runtime 1.31 one pair of large weights after
the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.graph.editor import MICROSOFT
from neural_compressor.onnx.graph.graph import constant, standard
from neural_compressor.onnx.graph.ops import NodeInfo, describe
from neural_compressor.schemes import OpKey, OpScheme, any_cpu_weight
from neural_compressor.schemes.pair_safe import in_pairs, is_pair_safe

logger = logging.getLogger("neural_compressor")

ANY, VNNI = "any", "vnni"
TARGET_CPUS = (ANY, VNNI)
"""``any``: the same numbers on every x86 CPU. ``vnni``: weights use all of int8, and overflow where there is no VNNI."""
_NAMED = 3


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


# -- plans -------------------------------------------------------------------------------------------------------------

_DYNAMIC = ("MatMul", "Gemm", "LSTM", "Attention")
_EIGHT_BITS = ("uint8", "int8")


def for_any_cpu(node: ir.Node, scheme: OpScheme) -> OpScheme:
    """``scheme`` with a weight on which the CPU kernel of ``node`` cannot overflow; the same where it could not before."""
    weight, activation = scheme.weight, scheme.activation
    if weight is None or weight.dtype.name != "int8" or activation is None or activation.dtype.name not in _EIGHT_BITS:
        return scheme
    return replace(scheme, weight=any_cpu_weight(weight)) if _adds_in_pairs(node, scheme.mode) else scheme


def _adds_in_pairs(node: ir.Node, mode: str) -> bool:
    if mode == "dynamic":
        return node.op_type in _DYNAMIC
    info = describe(node)
    return isinstance(info, NodeInfo) and sum_order(info) is not None


def target_cpu(model: ir.Model, ops: Mapping[OpKey, OpScheme]) -> str:
    """The CPUs that a float ``model``, quantized as ``ops`` say, gives the same on: ``any`` or ``vnni``."""
    nodes = {(str(node.name), node.op_type): node for node in model.graph.all_nodes()}
    safe = all(key not in nodes or for_any_cpu(nodes[key], scheme) == scheme for key, scheme in ops.items())
    return ANY if safe else VNNI


# -- quantized models --------------------------------------------------------------------------------------------------


@cache
def saturates_here() -> bool:
    """Whether the kernels of ONNX Runtime overflow on this CPU, found out by giving them a pair that does."""
    weight = onnx.numpy_helper.from_array(np.full((2, 16), 127, np.int8), "w")
    x, y = (onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in (("x", 2), ("y", 6)))
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one pair", [x], [y], [weight]),
        opset_imports=[onnx.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, 2), 255, np.uint8)})
    return bool((found != 2 * 127 * 255).any())


def overflowing_ops(model: ir.Model) -> list[str]:
    """The ops of a quantized model, whoever made it, whose weights can overflow where a CPU has no VNNI."""
    weights = _weights(model)
    return list(dict.fromkeys(str(node.name) for node, codes, order in weights if not is_safe(codes, order)))


def is_safe(codes: np.ndarray, order: SumOrder) -> bool:
    """Whether no two neighbours of an int8 weight overflow."""
    rows = order.rows(codes)
    return is_pair_safe(rows, in_pairs(rows.shape[1]))


_told: set[tuple[str, ...]] = set()


def warn_if_saturating(model: ir.Model) -> None:
    """Say, once for the same ops, that a quantized model does not give on this CPU what it gives on others."""
    if not saturates_here():
        return
    ops = overflowing_ops(model)
    if not ops or tuple(ops) in _told:
        return
    _told.add(tuple(ops))
    more = f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else ""
    logger.warning(
        "%d ops overflow on this CPU, which has no VNNI, where their sums are large: %s%s; quantize with target_cpu='any' "
        "(the default), or give the session the entry session.x64quantprecision=1, which is exact and slower",
        len(ops),
        ", ".join(ops[:_NAMED]),
        more,
    )


_INTEGER_PRODUCTS = {
    # the op: where it has its weight, and an input that has the type of its activations
    "QLinearMatMul": (3, 0),
    "QGemm": (3, 0),
    "MatMulInteger": (1, 0),
    "MatMulIntegerToFloat": (1, 0),
    "DynamicQuantizeMatMul": (1, None),
    "QAttention": (1, 0),
}


def _weights(model: ir.Model) -> Iterator[tuple[ir.Node, np.ndarray, SumOrder]]:
    """The int8 weights that integer kernels multiply uint8 activations with, each with how it is gone over."""
    for node in model.graph.all_nodes():
        if standard(node, "Conv", "MatMul", "Gemm"):
            if _dequantized(node.inputs[0], _EIGHT_BITS) is not None:
                yield from _with_order(node, constant(_dequantized(node.inputs[1], ("int8",))))
        elif standard(node, "QLinearConv") and _type(node.inputs[0], node.inputs[2]) == "uint8":
            yield from _with_order(node, constant(node.inputs[3]))
        elif node.op_type in _INTEGER_PRODUCTS and node.domain in ("", "ai.onnx", MICROSOFT):
            place, activation = _INTEGER_PRODUCTS[node.op_type]
            zero = _zero_point(node)
            if activation is None or _type(node.inputs[activation], zero) == "uint8":
                yield from _with_order(node, constant(node.inputs[place]))
        elif node.op_type == "DynamicQuantizeLSTM" and node.domain == MICROSOFT:
            for place in (1, 2):
                yield from _with_order(node, constant(node.inputs[place]))


def _with_order(node: ir.Node, codes: np.ndarray | None) -> Iterator[tuple[ir.Node, np.ndarray, SumOrder]]:
    if codes is None or codes.dtype != np.int8:
        return
    if node.op_type in ("Conv", "QLinearConv"):
        if not is_depthwise(codes.shape, node.attributes.get_int("group", 1)):
            yield node, codes, conv_order(codes.ndim)
    else:
        yield node, codes, matrix_order(codes.ndim, bool(node.attributes.get_int("transB", 0)))


def _zero_point(node: ir.Node) -> ir.Value | None:
    """The zero point of an integer product's activations, which has their type."""
    place = {"MatMulInteger": 2, "MatMulIntegerToFloat": 4, "QAttention": 6}.get(node.op_type, 2)
    return node.inputs[place] if len(node.inputs) > place else None


def _type(value: ir.Value | None, zero_point: ir.Value | None) -> str:
    """The type of activations; uint8 where nothing is known."""
    for known in (zero_point, value):
        if known is not None and known.dtype is not None:
            return known.dtype.name.lower()
    return "uint8"


def _dequantized(value: ir.Value | None, kinds: Collection[str]) -> ir.Value | None:
    """The integers that ``value`` is dequantized from, if they are of one of the types ``kinds``."""
    node = None if value is None else value.producer()
    if node is None or not standard(node, "DequantizeLinear"):
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    # Without a zero point the type is that of the integers themselves.
    return node.inputs[0] if _type(node.inputs[0], zero) in kinds else None
