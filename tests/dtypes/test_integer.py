"""Integers of 1 to 16 bits."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import IntType
from neural_compressor.errors import ConfigError


@pytest.mark.parametrize(
    ("bits", "signed", "low", "high"),
    [
        (1, True, -1, 0),
        (1, False, 0, 1),
        (4, True, -8, 7),
        (8, True, -128, 127),
        (8, False, 0, 255),
        (16, False, 0, 65535),
    ],
)
def test_bounds(bits: int, signed: bool, low: int, high: int) -> None:
    kind = IntType(bits, signed)
    assert (kind.min, kind.max) == (low, high)
    assert kind.name == f"{'' if signed else 'u'}int{bits}"


@pytest.mark.parametrize("bits", [0, -1, 17, 99])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="1 to 16 bits"):
        IntType(bits)
