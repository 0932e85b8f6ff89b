"""Block formats: the OCP MX family and NVFP4."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import BlockType, IntType, bf16, dtype
from neural_compressor.dtypes.catalogue import e8m0
from neural_compressor.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "element", "block", "scale", "cost"),
    [
        ("mxfp8", "fp8_e4m3", 32, "e8m0", 8.25),
        ("mxfp8_e5m2", "fp8_e5m2", 32, "e8m0", 8.25),
        ("mxfp6", "fp6_e3m2", 32, "e8m0", 6.25),
        ("mxfp6_e2m3", "fp6_e2m3", 32, "e8m0", 6.25),
        ("mxfp4", "fp4_e2m1", 32, "e8m0", 4.25),
        ("mxint8", "int8", 32, "e8m0_int8", 8.25),
        ("nvfp4", "fp4_e2m1", 16, "fp8_e4m3", 4.5),
    ],
)
def test_formats_are_those_of_the_specifications(name: str, element: str, block: int, scale: str, cost: float) -> None:
    kind = dtype(name)
    assert isinstance(kind, BlockType)
    assert (kind.element.name, kind.block, kind.scale.name) == (element, block, scale)
    assert kind.bits + kind.scale_type.bits / kind.block_size == cost
    assert kind.bits == kind.element.bits


def test_formats_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one value"):
        BlockType("empty", IntType(4), 0, e8m0)
    with pytest.raises(ConfigError, match="in one byte; bf16 has 16 bits"):
        BlockType("wide", IntType(4), 16, bf16)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_stored_scale_of_integers_is_that_of_numbers_below_two(bits: int) -> None:
    """OCP MX: an int8 is a number of 64ths, and the byte 127 a scale of 1; here that is the scale of the integers."""
    scales = dtype(f"mxint{bits}_b16").scale_type
    assert scales is not None
    assert scales.code_values[127] == 2.0 ** (2 - bits)
    assert scales.grid[0] == 2.0 ** (-127 + 2 - bits)
