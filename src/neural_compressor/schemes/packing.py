"""Codes of 1 to 16 bits, stored side by side without gaps."""

from __future__ import annotations

from typing import Any

from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, in_runs


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that ``count`` codes of ``bits`` bits take.

    >>> packed_bytes(9, 3)
    4
    """
    return -(-count * bits // 8)


def pack_bits(codes: Array, bits: int) -> Array:
    """``codes`` as uint8, each row of the last axis by itself, the first code in the lowest bits.

    Negative codes are stored in two's complement.

    >>> import numpy as np
    >>> pack_bits(np.uint8([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    _check_bits(bits)
    xp = array_namespace(codes)
    count = codes.shape[-1]
    words = xp.astype(codes, _word(xp, bits), copy=False)
    if bits == 8:
        return words
    words = words & ((1 << bits) - 1)
    octets = in_runs(words, 8)
    columns = []
    for byte in range(bits):
        parts = [_shift(octets[..., code], code * bits - 8 * byte) for code in _overlapping(byte, bits)]
        columns.append(_join(parts) & 0xFF)
    packed = xp.stack([xp.astype(column, xp.uint8, copy=False) for column in columns], axis=-1)
    return _rows(packed)[..., : packed_bytes(count, bits)]


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """The first ``count`` codes of each row, as unsigned numbers (uint8, or int32 above 8 bits).

    >>> import numpy as np
    >>> unpack_bits(np.uint8([33, 3]), 4, 3).tolist()
    [1, 2, 3]
    """
    _check_bits(bits)
    if packed.shape[-1] != packed_bytes(count, bits):
        raise FormatError(
            f"{count} codes of {bits} bits take {packed_bytes(count, bits)} bytes a row, found {packed.shape[-1]}"
        )
    xp = array_namespace(packed)
    if bits == 8:
        return packed
    runs = in_runs(xp.astype(packed, _word(xp, bits), copy=False), bits)
    columns = []
    for code in range(8):
        bytes_of_code = [byte for byte in range(bits) if code in _overlapping(byte, bits)]
        columns.append(_join([_shift(runs[..., byte], 8 * byte - code * bits) for byte in bytes_of_code]))
    return _rows(xp.stack(columns, axis=-1) & ((1 << bits) - 1))[..., :count]


def _overlapping(byte: int, bits: int) -> list[int]:
    """Which of 8 consecutive codes have bits in ``byte``."""
    return [code for code in range(8) if code * bits < 8 * byte + 8 and (code + 1) * bits > 8 * byte]


def _word(xp: Any, bits: int) -> Any:
    return xp.uint8 if bits <= 8 else xp.int32


def _shift(x: Array, by: int) -> Array:
    return x << by if by > 0 else x >> -by if by < 0 else x


def _join(parts: list[Array]) -> Array:
    joined = parts[0]
    for part in parts[1:]:
        joined = joined | part
    return joined


def _rows(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 16:
        raise QuantizationError(f"codes of 1 to 16 bits can be packed, not of {bits}")
