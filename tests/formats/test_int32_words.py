"""Words of packed codes against arithmetic on one long Python integer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.errors import FormatError
from neural_compressor.formats.int32_words import pack_words, unpack_words, word_count


def as_long_integer(row: list[int], bits: int) -> list[int]:
    """The reference: codes stacked into one integer, lowest first, cut into signed words."""
    number = sum(code << (bits * place) for place, code in enumerate(row))
    words = [number >> (32 * k) & 0xFFFFFFFF for k in range(-(-len(row) * bits // 32))]
    return [word - (1 << 32) if word >> 31 else word for word in words]


@st.composite
def coded(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    bits = draw(st.integers(1, 8))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 70)))
    return bits, draw(npst.arrays(np.uint8, shape, elements=st.integers(0, (1 << bits) - 1)))


@settings(max_examples=150)
@given(coded())
def test_words_are_a_stream_of_bits_and_come_back(case: tuple[int, np.ndarray]) -> None:
    bits, codes = case
    words = pack_words(codes, bits)
    assert words.dtype == np.int32
    assert words.tolist() == [as_long_integer(row, bits) for row in codes.tolist()]
    assert np.array_equal(unpack_words(words, bits, codes.shape[1]), codes)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(1, 64), (3, 33), (5, 4, 7)])
def test_torch_packs_the_same_words(bits: int, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, shape).astype(np.uint8)
    theirs = pack_words(torch.from_numpy(codes), bits)
    assert np.array_equal(theirs.numpy(), pack_words(codes, bits))
    assert np.array_equal(unpack_words(theirs, bits, shape[-1]).numpy(), codes)


@pytest.mark.parametrize("bits", range(1, 9))
def test_transposed_arrays_pack_like_any_other(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (40, 1)).astype(np.uint8)
    expected = pack_words(np.ascontiguousarray(codes.T), bits)
    assert np.array_equal(pack_words(codes.T, bits), expected)
    assert np.array_equal(pack_words(torch.from_numpy(codes).T, bits).numpy(), expected)


def test_other_types_and_lengths_are_refused() -> None:
    words = pack_words(np.zeros((2, 32), np.uint8), 3)
    assert word_count(32, 3) == 3
    with pytest.raises(FormatError, match="stored as int32, found int64"):
        unpack_words(words.astype(np.int64), 3, 32)
    with pytest.raises(FormatError, match="33 codes of 3 bits take 4 words a row, found 3"):
        unpack_words(words, 3, 33)
