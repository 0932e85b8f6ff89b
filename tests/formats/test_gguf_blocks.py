"""Blocks of GGUF files against their description, value by value, and against the package of llama.cpp."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from neural_compressor.dtypes import IntType
from neural_compressor.errors import FormatError
from neural_compressor.formats import GGUF, LinearSpec, LinearWeight
from neural_compressor.formats.gguf_blocks import block_type
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme, quantize

#: Bits, symmetric, and the block type that holds such codes.
KINDS = [
    (2, True, "Q4_0"),
    (4, True, "Q4_0"),
    (5, True, "Q8_0"),
    (8, True, "Q8_0"),
    (3, False, "Q4_1"),
    (4, False, "Q4_1"),
    (6, False, "Q8_0"),
]


def quantized(bits: int, symmetric: bool, part: object) -> LinearWeight:
    x = np.random.default_rng(bits).standard_normal((6, 128)).astype(np.float32)
    return LinearWeight.from_quantized(quantize(x, TensorScheme(IntType(bits), symmetric, part)))


def decoded(row: bytes, kind: str) -> list[float]:
    """The values of a row of blocks, one after another."""
    values: list[float] = []
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    for start in range(0, len(row), size):
        block = row[start : start + size]
        (scale,) = struct.unpack("<e", block[:2])
        if kind == "Q8_0":
            values += [scale * q for q in struct.unpack("<32b", block[2:])]
            continue
        offset = struct.unpack("<e", block[2:4])[0] if kind == "Q4_1" else -8 * scale
        nibbles = block[-16:]
        values += [scale * q + offset for q in ([b & 15 for b in nibbles] + [b >> 4 for b in nibbles])]
    return values


@pytest.mark.parametrize(("bits", "symmetric", "kind"), KINDS)
@pytest.mark.parametrize("part", [PerGroup(32), PerGroup(64), PER_CHANNEL])
def test_blocks_hold_the_codes_of_a_weight(bits: int, symmetric: bool, kind: str, part: object) -> None:
    weight = quantized(bits, symmetric, part)
    assert block_type(weight.spec) == kind
    stored = GGUF().compress(weight)["weight"]
    assert stored.shape == (6, 4 * {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind])
    scale = np.take(weight.scale, weight.column_groups, axis=1).astype(np.float16).astype(np.float64)
    zeros = np.take(weight.zero_points, weight.column_groups, axis=1)
    expected = (weight.codes.astype(int) - zeros) * scale
    found = np.asarray([decoded(row.tobytes(), kind) for row in stored])
    # Q4_1 rounds the product of scale and zero point to float16; the others are exact.
    rounded = np.abs(zeros * scale) * 2.0**-11 if kind == "Q4_1" else 0.0
    assert np.all(np.abs(found - expected) <= rounded)


@pytest.mark.parametrize(("bits", "symmetric", "kind"), KINDS)
def test_the_package_of_llama_cpp_reads_the_same(bits: int, symmetric: bool, kind: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the reference reader is not installed: pip install gguf")
    weight = quantized(bits, symmetric, PerGroup(32))
    stored = GGUF().compress(weight)["weight"]
    theirs = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    assert np.allclose(theirs, [decoded(row.tobytes(), kind) for row in stored], rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_blocks_that_the_package_quantized_are_read(kind: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the reference writer is not installed: pip install gguf")
    x = np.random.default_rng(3).standard_normal((5, 96)).astype(np.float32)
    x[2, 32:64] = 0.0
    stored = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind])
    weight = GGUF().decompress({"weight": stored}, {"tensor_types": {"fc": kind}}, "fc")
    assert np.array_equal(weight.dequantize(), gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]))
    assert np.array_equal(GGUF().compress(weight)["weight"], stored)


def test_offsets_between_steps_have_no_integer_zero_point() -> None:
    block = struct.pack("<ee16B", 0.5, -0.3, *range(16))
    with pytest.raises(FormatError, match=r"layer 'fc'.*offsets between steps"):
        GGUF().decompress({"weight": np.frombuffer(block, np.uint8)[None]}, {"tensor_types": {"fc": "Q4_1"}}, "fc")


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (quantized(8, False, PerGroup(32)), "asymmetric integers of 8 bits"),
        (quantized(4, True, PerGroup(16)), "whole blocks"),
        (quantized(4, True, PerGroup(48)), "whole blocks"),
        (LinearWeight(np.zeros((2, 40), np.uint8), np.ones((2, 1), np.float32), None, 4, -1), "whole blocks"),
    ],
)
def test_what_no_block_holds_is_refused_with_the_reason(weight: LinearWeight, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        GGUF().compress(weight, "fc")


def test_bytes_that_are_no_blocks_are_refused() -> None:
    types = {"tensor_types": {"fc": "Q4_0", "other": "Q6_K"}}
    with pytest.raises(FormatError, match="whole Q4_0 blocks: 19 bytes"):
        GGUF().decompress({"weight": np.zeros((2, 19), np.uint8)}, types, "fc")
    with pytest.raises(FormatError, match="not 'Q6_K'"):
        GGUF().decompress({"weight": np.zeros((2, 18), np.uint8)}, types, "other")
    with pytest.raises(FormatError, match="NaN or Inf"):
        GGUF().decompress({"weight": np.full((2, 18), 255, np.uint8)}, types, "fc")


def test_each_layer_says_its_type() -> None:
    block = GGUF().config({"a": LinearSpec(4, 32, True), "b": LinearSpec(8, 32, True)})
    assert block["tensor_types"] == {"a": "Q4_0", "b": "Q8_0"}
