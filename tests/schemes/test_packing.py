"""Packed codes against arithmetic on one long Python integer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes import pack_bits, unpack_bits
from neural_compressor.schemes.packing import packed_bytes

BITS = range(1, 17)


def as_long_integer(row: list[int], bits: int) -> bytes:
    """The reference: codes stacked into one integer, lowest first, written little-endian."""
    number = sum((code & ((1 << bits) - 1)) << (bits * place) for place, code in enumerate(row))
    return number.to_bytes(-(-len(row) * bits // 8), "little")


@st.composite
def coded(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    bits = draw(st.sampled_from(BITS))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 40)))
    return bits, draw(npst.arrays(np.int32, shape, elements=st.integers(0, (1 << bits) - 1)))


@settings(max_examples=150)
@given(coded())
def test_packing_is_little_endian_and_comes_back(case: tuple[int, np.ndarray]) -> None:
    bits, codes = case
    packed = pack_bits(codes, bits)
    assert packed.dtype == np.uint8
    assert [row.tobytes() for row in packed] == [as_long_integer(row, bits) for row in codes.tolist()]
    assert np.array_equal(unpack_bits(packed, bits, codes.shape[1]), codes)


@pytest.mark.parametrize("bits", BITS)
def test_torch_packs_the_same_bytes(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 4, 29)).astype(np.int32)
    packed = pack_bits(codes, bits)
    theirs = pack_bits(torch.from_numpy(codes), bits)
    assert np.array_equal(theirs.numpy(), packed)
    assert np.array_equal(unpack_bits(theirs, bits, 29).numpy(), codes)


@pytest.mark.parametrize("bits", BITS)
def test_negative_codes_are_stored_in_twos_complement(bits: int) -> None:
    low = -(1 << (bits - 1))
    codes = np.arange(low, -low, max(1, -low // 8)).astype(np.int16 if bits > 8 else np.int8)
    assert pack_bits(codes, bits).tobytes() == as_long_integer(codes.tolist(), bits)


@pytest.mark.parametrize("bits", BITS)
def test_a_packed_row_can_be_taken_alone(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (6, 21)).astype(np.int32)
    packed = pack_bits(codes, bits)
    assert np.array_equal(unpack_bits(packed[2:4], bits, 21), codes[2:4])


@pytest.mark.parametrize("bits", BITS)
def test_less_than_a_byte_is_wasted_in_a_row(bits: int) -> None:
    for count in (1, 7, 8, 9, 100):
        assert 0 <= packed_bytes(count, bits) * 8 - count * bits < 8
        assert pack_bits(np.zeros(count, np.uint8), bits).shape == (packed_bytes(count, bits),)


def test_a_truncated_row_is_refused() -> None:
    packed = pack_bits(np.arange(10, dtype=np.uint8), 4)
    with pytest.raises(FormatError, match="10 codes of 4 bits take 5 bytes a row, found 4"):
        unpack_bits(packed[:-1], 4, 10)


@pytest.mark.parametrize("bits", [0, 17, -3])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(QuantizationError, match="1 to 16 bits"):
        pack_bits(np.zeros(4, np.uint8), bits)
    with pytest.raises(QuantizationError, match="1 to 16 bits"):
        unpack_bits(np.zeros(4, np.uint8), bits, 2)
