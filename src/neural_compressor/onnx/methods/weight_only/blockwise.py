"""Matrices quantized in blocks: codes, scales and zero points as the runtime's kernels take them, and the nodes that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import FloatZeroArray
from neural_compressor.algorithms.checks import group_size
from neural_compressor.dtypes import DType
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.editor import MICROSOFT, GraphEditor
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode
from neural_compressor.onnx.graph.queries import graph_of
from neural_compressor.schemes import QuantizedArray, pack_bits

BLOCKS = (256, 128, 64, 32, 16)
"""How many inputs may share a scale in MatMulNBits."""
WIDTHS = (2, 4, 8)
"""Bits of a code."""
_ONE_GROUP = 128
"""The block where all inputs of an output share a scale: larger ones cost accuracy where inputs are rounded to int8."""


def runs_in_kernel(kind: DType) -> bool:
    """Whether MatMulNBits multiplies with codes of ``kind``: integers, in the next larger width where it has not theirs."""
    fits = kind.block_size is None or any(kind.block_size % block == 0 for block in BLOCKS)
    return kind.element_type.is_integer and kind.bits <= WIDTHS[-1] and fits


@dataclass(frozen=True, eq=False)
class BlockCodes:
    """``value = (code - zero) * scale`` with unsigned codes of ``bits`` bits, (rows, columns) of them.

    ``scales`` and ``zeros`` are (rows, blocks). ``zeros`` is None where every one is the middle of the codes. Where zero
    points are no integers these are the nearest, and ``offsets`` (rows, blocks) is what the values of a block lack then.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bits: int
    block: int
    offsets: np.ndarray | None = None

    @property
    def middle(self) -> int:
        """The code of zero where there are no zero points."""
        return 1 << (self.bits - 1)


def block_codes(array: QuantizedArray | FloatZeroArray, widths: Sequence[int] = WIDTHS) -> BlockCodes:
    """``array`` (rows, columns), its groups cut into blocks where they are larger or of another size.

    Codes take the first of ``widths`` bits that holds them. Those of small floats stay as they are, and so do their groups.

    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup, TensorScheme, quantize
    >>> q = quantize(np.ones((1, 96), np.float32), TensorScheme(dtype("int3"), granularity=PerGroup(48)))
    >>> found = block_codes(q)
    >>> found.bits, found.block, found.scales.shape, found.codes[0, 0]
    (4, 16, (1, 6), np.uint8(11))
    """
    (rows, columns), kind = array.shape, array.scheme.dtype
    size = group_size(array.scheme, columns)
    is_integer = runs_in_kernel(kind)
    bits = next(width for width in widths if width >= kind.bits)
    block = check_block(size, columns) if is_integer else size
    blocks = -(-columns // block)

    def by_block(parameter: Any) -> np.ndarray:
        table = np.asarray(parameter)
        table = table if table.ndim == 2 else table.reshape(-1, 1)
        repeated = np.repeat(table, blocks if size == columns else size // block, axis=1)[:, :blocks]
        return np.ascontiguousarray(np.broadcast_to(repeated, (rows, blocks)))

    shift = 1 << (bits - 1) if is_integer and kind.signed else 0
    codes = np.asarray(array.codes).astype(np.uint8) + np.uint8(shift)
    scales = by_block(array.scale)
    if isinstance(array, FloatZeroArray):
        floats = by_block(array.zero) + np.float32(shift)
        nearest = np.clip(np.rint(floats), 0, (1 << bits) - 1)
        return BlockCodes(codes, scales, nearest.astype(np.uint8), bits, block, scales * (nearest - floats))
    if array.tensor_scale is not None:
        scales = scales * np.asarray(array.tensor_scale)
    zeros = None if array.zero_point is None else (by_block(array.zero_point) + shift).astype(np.uint8)
    if zeros is not None and (zeros == 1 << (bits - 1)).all():
        zeros = None
    return BlockCodes(codes, scales, zeros, bits, block)


def check_block(size: int, columns: int) -> int:
    """The blocks of a kernel into which groups of ``size`` inputs, of ``columns`` in all, are cut."""
    if size == columns:
        return min(b for b in BLOCKS if b >= min(columns, _ONE_GROUP))
    fitting = [b for b in BLOCKS if size % b == 0]
    if not fitting:
        raise ConfigError(
            f"a group of {size} inputs cannot be cut into blocks of {', '.join(map(str, BLOCKS))}, which is what the "
            "runtime takes; use a group size that one of them divides"
        )
    return fitting[0]


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """A quantized matrix among the constants of a graph."""

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    bits: int
    block: int
    offsets: ir.Value | None = None


def widths(node: MatrixNode, quant_format: str) -> list[int]:
    """Bits that codes of the node's matrix may have, fewest first."""
    outputs, inputs = node.shape
    if node.is_table:
        # The runtime takes the width of an entry from its bytes.
        return [bits for bits in WIDTHS if inputs * bits % 8 == 0]
    # Fusing DequantizeLinear, ONNX Runtime 1.31 mixes up 2-bit codes unless a row of them fills whole bytes.
    return [bits for bits in WIDTHS if quant_format == "QOperator" or bits > 2 or outputs % 4 == 0]


def store(edit: GraphEditor, node: MatrixNode, blocks: BlockCodes, kind: ir.DataType | None = None) -> StoredBlocks:
    """The constants of a DequantizeLinear that gives the matrix as (inputs, outputs), with codes of ``kind``.

    Without a kind those of MatMulNBits, or of GatherBlockQuantized for a table.
    """
    codes: np.ndarray | ir.TensorProtocol
    zeros: np.ndarray | ir.TensorProtocol | None
    scales, graph, name, to = blocks.scales, graph_of(node.weight), node.weight.name, node.dtype.numpy()
    if kind is not None:
        signed = kind.is_integer() and blocks.zeros is None
        codes = _tensor((blocks.codes - np.uint8(blocks.middle) if signed else blocks.codes).T, kind)
        zeros = None if blocks.zeros is None else _tensor(blocks.zeros.T, kind)
        scales = np.ascontiguousarray(scales.T)
    elif node.is_table and blocks.offsets is not None:
        raise ConfigError("tables that a Gather reads have integer zero points only; leave integer_zero at True")
    else:
        missing = 0 if node.is_table else scales.shape[1] * blocks.block - blocks.codes.shape[1]
        filled = np.pad(blocks.codes, ((0, 0), (0, missing)), constant_values=blocks.middle)
        packed = np.asarray(pack_bits(filled, blocks.bits))
        codes = packed if node.is_table else packed.reshape(*scales.shape, -1)
        zeros = None if blocks.zeros is None else np.asarray(pack_bits(blocks.zeros, blocks.bits))
    offsets = None if blocks.offsets is None else np.ascontiguousarray(blocks.offsets.T.astype(to))
    return StoredBlocks(
        edit.weight(f"{name}_Q{blocks.bits}", codes, graph),
        edit.weight(f"{name}_scales", scales.astype(to), graph),
        None if zeros is None else edit.weight(f"{name}_zero_points", zeros, graph),
        blocks.bits,
        blocks.block,
        None if offsets is None else edit.weight(f"{name}_offsets", offsets, graph),
    )


def _tensor(codes: np.ndarray, kind: ir.DataType) -> ir.TensorProtocol:
    """Unsigned or two's complement codes as a tensor, packed where they are smaller than a byte."""
    if kind.bitwidth == 8:
        return ir.tensor(np.ascontiguousarray(codes).view(kind.numpy()))
    return ir.PackedTensor(np.asarray(pack_bits(codes.reshape(-1), kind.bitwidth)), kind, shape=codes.shape)


def add_product(
    edit: GraphEditor,
    node: MatrixNode,
    x: ir.Value,
    stored: StoredBlocks | ir.Value,
    bias: ir.Value | None,
    level: int | None = None,
) -> ir.Value:
    """The product of ``x`` with the stored matrix, or with a float one (inputs, outputs), plus ``bias`` (outputs).

    With a ``level`` of accuracy that is a MatMulNBits; otherwise standard operators, in the form that ONNX Runtime fuses.
    """
    if isinstance(stored, StoredBlocks) and level is not None:
        operands = [x, stored.codes, stored.scales, stored.zeros, None, bias]
        while operands[-1] is None:
            operands.pop()
        outputs, inputs = node.shape
        sizes = {"K": inputs, "N": outputs, "bits": stored.bits, "block_size": stored.block, "accuracy_level": level}
        product = edit.insert(node.node, "MatMulNBits", operands, sizes, domain=MICROSOFT)[0]
    else:
        weight = stored
        if isinstance(weight, StoredBlocks):
            operands = [weight.codes, weight.scales, *([] if weight.zeros is None else [weight.zeros])]
            weight = edit.insert(node.node, "DequantizeLinear", operands, {"axis": 0, "block_size": weight.block})[0]
            weight.type, weight.shape = ir.TensorType(node.dtype), ir.Shape(node.shape[::-1])
        product = edit.insert(node.node, "MatMul", [x, weight])[0]
        product = product if bias is None else edit.insert(node.node, "Add", [product, bias])[0]
    return _with_offsets(edit, node, x, stored, product) if isinstance(stored, StoredBlocks) else product


def _with_offsets(
    edit: GraphEditor, node: MatrixNode, x: ir.Value, stored: StoredBlocks, product: ir.Value
) -> ir.Value:
    """``product`` plus what the offsets of the blocks add: the sums of ``x`` over each block, times the offsets.

    MatMulNBits takes zero points that are no integers, but then its CPU kernel writes out the float weight at each call.
    """
    if stored.offsets is None:
        return product
    if node.input.shape is None:
        raise ConfigError(
            "the rank of its input is not known, which float zero points need; leave integer_zero at True"
        )
    rank, graph, blocks = len(node.input.shape), graph_of(node.weight), -(-node.shape[1] // stored.block)

    def insert(op_type: str, value: ir.Value, argument: list[int], **attributes: int) -> ir.Value:
        constant = edit.weight(f"{node.name}_{op_type}_argument", np.asarray(argument, np.int64), graph)
        return edit.insert(node.node, op_type, [value, constant], attributes)[0]

    if missing := blocks * stored.block - node.shape[1]:
        x = insert("Pad", x, [0] * (2 * rank - 1) + [missing])
    sums = insert("ReduceSum", insert("Reshape", x, [0] * (rank - 1) + [blocks, stored.block]), [-1], keepdims=0)
    return edit.insert(node.node, "Add", [product, edit.insert(node.node, "MatMul", [sums, stored.offsets])[0]])[0]


def add_gather(edit: GraphEditor, node: MatrixNode, stored: StoredBlocks | ir.Value) -> ir.Value:
    """The entries looked up in the stored table, as floats."""
    if isinstance(stored, ir.Value):
        return edit.insert(node.node, "Gather", [stored, node.input], {"axis": 0})[0]
    operands = [stored.codes, node.input, stored.scales, *([] if stored.zeros is None else [stored.zeros])]
    attributes = {"bits": stored.bits, "block_size": stored.block, "gather_axis": 0, "quantize_axis": 1}
    return edit.insert(node.node, "GatherBlockQuantized", operands, attributes, domain=MICROSOFT)[0]
