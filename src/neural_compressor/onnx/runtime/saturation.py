"""Quantized models whose integer kernels may overflow on this CPU, found and warned of.

On x86 CPUs without VNNI some kernels add two products in 16 bits, see :mod:`neural_compressor.onnx.graph.sum_order`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.graph.editor import MICROSOFT
from neural_compressor.onnx.graph.integer_tensors import EIGHT_BITS
from neural_compressor.onnx.graph.queries import constant, producer, standard
from neural_compressor.onnx.graph.sum_order import (
    SumOrder,
    conv_order,
    is_depthwise,
    matrix_order,
)
from neural_compressor.schemes.pair_safe import in_pairs, is_pair_safe

logger = logging.getLogger("neural_compressor")

_NAMED = 3


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
    # the op: where it has its weight, and the zero point of its activations, which has their type
    "QLinearConv": (3, 2),
    "QLinearMatMul": (3, 2),
    "QGemm": (3, 2),
    "MatMulInteger": (1, 2),
    "MatMulIntegerToFloat": (1, 4),
    "DynamicQuantizeMatMul": (1, None),
    "QAttention": (1, 6),
}


def _weights(model: ir.Model) -> Iterator[tuple[ir.Node, np.ndarray, SumOrder]]:
    """The int8 weights that integer kernels multiply uint8 activations with, each with how it is gone over."""
    for node in model.graph.all_nodes():
        if standard(node, "Conv", "MatMul", "Gemm"):
            if _dequantized(node.inputs[0], EIGHT_BITS) is not None:
                yield from _with_order(node, constant(_dequantized(node.inputs[1], ("int8",))))
        elif node.op_type in _INTEGER_PRODUCTS and node.domain in ("", "ai.onnx", MICROSOFT):
            place, zero = _INTEGER_PRODUCTS[node.op_type]
            if zero is None or _type(node.inputs[0], node.inputs[zero] if len(node.inputs) > zero else None) == "uint8":
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


def _type(value: ir.Value | None, zero_point: ir.Value | None) -> str:
    """The type of activations; uint8 where nothing is known."""
    for known in (zero_point, value):
        if known is not None and known.dtype is not None:
            return known.dtype.name.lower()
    return "uint8"


def _dequantized(value: ir.Value | None, kinds: Collection[str]) -> ir.Value | None:
    """The integers that ``value`` is dequantized from, if they are of one of the types ``kinds``."""
    if (node := producer(value, "DequantizeLinear")) is None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    # Without a zero point the type is that of the integers themselves.
    return node.inputs[0] if _type(node.inputs[0], zero) in kinds else None
