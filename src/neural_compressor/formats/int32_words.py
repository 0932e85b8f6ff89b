"""Codes as the int32 words of checkpoints: the plain bit stream of each row, cut into words of 32 bits.

One code after the other, the first in the lowest bits, across the borders of words: 32 codes of 3 bits take 3 words.
"""

from __future__ import annotations

from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.byte_views import reinterpreted
from neural_compressor.schemes import pack_bits, unpack_bits
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.packing import packed_bytes


def word_count(count: int, bits: int) -> int:
    """Words that ``count`` codes take.

    >>> word_count(32, 3), word_count(33, 3)
    (3, 4)
    """
    return -(-count * bits // 32)


def pack_words(codes: Array, bits: int) -> Array:
    """``codes`` as int32, each row of the last axis by itself, the last word filled up with zeros.

    >>> import numpy as np
    >>> [hex(word) for word in pack_words(np.arange(9, dtype=np.uint8), 4).tolist()]
    ['0x76543210', '0x8']
    """
    xp = array_namespace(codes)
    octets = pack_bits(codes, bits)
    missing = -octets.shape[-1] % 4
    if missing:
        blank = xp.zeros((*octets.shape[:-1], missing), dtype=xp.uint8, device=device(octets))
        octets = xp.concat([octets, blank], axis=-1)
    return reinterpreted(octets, xp.int32)


def unpack_words(words: Array, bits: int, count: int) -> Array:
    """The first ``count`` codes of each row, as uint8.

    >>> import numpy as np
    >>> unpack_words(np.int32([0x76543210, 0x8]), 4, 9).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    xp = array_namespace(words)
    if words.dtype != xp.int32:
        raise FormatError(f"packed codes are stored as int32, found {words.dtype}")
    if words.shape[-1] != word_count(count, bits):
        raise FormatError(
            f"{count} codes of {bits} bits take {word_count(count, bits)} words a row, found {words.shape[-1]}"
        )
    octets = reinterpreted(words, xp.uint8)
    return unpack_bits(octets[..., : packed_bytes(count, bits)], bits, count)
