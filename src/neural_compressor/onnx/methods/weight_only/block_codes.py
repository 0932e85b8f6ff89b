"""A quantized matrix as the codes, scales and zero points of blocks that the runtime's kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_compressor.algorithms import FloatZeroArray
from neural_compressor.algorithms.checks import group_size
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import QuantizedArray, pack_bits

BLOCKS = (256, 128, 64, 32, 16)
"""How many inputs may share a scale in MatMulNBits."""
WIDTHS = (2, 4, 8)
"""Bits of a code."""
_ONE_GROUP = 128
"""The block where all inputs of an output share a scale: larger ones cost accuracy where inputs are rounded to int8."""


@dataclass(frozen=True, eq=False)
class BlockCodes:
    """``value = (code - zero) * scale`` with unsigned codes of ``bits`` bits, (rows, columns) of them.

    ``scales`` and ``zeros`` are (rows, blocks). ``zeros`` is None where every one is the middle of the codes, and float32
    where they are no integers.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bits: int
    block: int

    @property
    def middle(self) -> int:
        """The code of zero where there are no zero points."""
        return 1 << (self.bits - 1)

    def packed(self) -> np.ndarray:
        """Codes as bytes, each row by itself."""
        return np.asarray(pack_bits(self.codes, self.bits))

    def packed_blocks(self) -> np.ndarray:
        """Codes as bytes (rows, blocks, bytes of a block), the last block filled up."""
        rows, columns = self.codes.shape
        blocks = self.scales.shape[1]
        codes = np.pad(self.codes, ((0, 0), (0, blocks * self.block - columns)), constant_values=self.middle)
        return np.asarray(pack_bits(codes, self.bits)).reshape(rows, blocks, self.block * self.bits // 8)

    def packed_zeros(self) -> np.ndarray | None:
        """Zero points as bytes, each row by itself; floats stay as they are."""
        if self.zeros is None or self.zeros.dtype != np.uint8:
            return self.zeros
        return np.asarray(pack_bits(self.zeros, self.bits))


def block_codes(array: QuantizedArray | FloatZeroArray, widths: Sequence[int] = WIDTHS) -> BlockCodes:
    """``array`` (rows, columns), its groups cut into blocks where they are larger or of another size.

    Codes take the first of ``widths`` bits that holds them.

    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup, TensorScheme, quantize
    >>> q = quantize(np.ones((1, 96), np.float32), TensorScheme(dtype("int3"), granularity=PerGroup(48)))
    >>> found = block_codes(q)
    >>> found.bits, found.block, found.scales.shape, found.codes[0, 0]
    (4, 16, (1, 6), np.uint8(11))
    """
    rows, columns = array.shape
    kind = array.scheme.dtype
    bits = next(width for width in widths if width >= kind.bits)
    size = group_size(array.scheme, columns)
    block = _block(size, columns)
    blocks = -(-columns // block)

    def by_block(parameter: Any) -> np.ndarray:
        table = np.asarray(parameter)
        table = table if table.ndim == 2 else table.reshape(-1, 1)
        repeated = np.repeat(table, blocks if size == columns else size // block, axis=1)[:, :blocks]
        return np.ascontiguousarray(np.broadcast_to(repeated, (rows, blocks)))

    shift = 1 << (bits - 1) if kind.signed else 0
    codes = np.asarray(array.codes).astype(np.uint8) + np.uint8(shift)
    scales = by_block(array.scale)
    if isinstance(array, FloatZeroArray):
        return BlockCodes(codes, scales, by_block(array.zero) + np.float32(shift), bits, block)
    zeros = None if array.zero_point is None else (by_block(array.zero_point) + shift).astype(np.uint8)
    if zeros is not None and (zeros == 1 << (bits - 1)).all():
        zeros = None
    return BlockCodes(codes, scales, zeros, bits, block)


def _block(size: int, columns: int) -> int:
    if size == columns:
        return min(b for b in BLOCKS if b >= min(columns, _ONE_GROUP))
    fitting = [b for b in BLOCKS if size % b == 0]
    if not fitting:
        raise ConfigError(
            f"a group of {size} inputs cannot be cut into blocks of {', '.join(map(str, BLOCKS))}, which is what the "
            "runtime takes; use a group size that one of them divides"
        )
    return fitting[0]
