"""Data types given by a list of values."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import CodebookType, dtype
from neural_compressor.errors import ConfigError

# The NF4 values as the QLoRA paper lists them (appendix E).
NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


def test_nf4_has_the_published_values() -> None:
    kind = dtype("nf4")
    assert isinstance(kind, CodebookType)
    # They were published from float32 arithmetic.
    assert kind.values == pytest.approx(NF4, abs=1e-6)
    assert kind.bits == 4
    assert kind.values[7] == 0.0


def test_bits_are_those_of_the_number_of_values() -> None:
    assert [CodebookType("c", tuple(range(n))).bits for n in (2, 3, 4, 5, 16, 17, 256)] == [1, 2, 2, 3, 4, 5, 8]


def test_values_may_come_in_any_order() -> None:
    kind = CodebookType("mixed", (0.5, -1.0, 0.0))
    assert kind.grid == (-1.0, 0.0, 0.5)
    assert (kind.min, kind.max, kind.signed) == (-1.0, 0.5, True)


@pytest.mark.parametrize("values", [(), (1.0,), (1.0, 1.0)])
def test_fewer_than_two_values_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="'poor' needs at least two different values"):
        CodebookType("poor", values)


@pytest.mark.parametrize(
    "values", [(0.0, float("nan")), (0.0, float("inf")), tuple(map(float, range(65537))), (0.0, 1e39)]
)
def test_values_that_no_float32_or_code_can_hold_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="'odd'"):
        CodebookType("odd", values)


def test_a_codebook_of_zeros_to_float32_is_refused() -> None:
    with pytest.raises(ConfigError, match="two different values"):
        CodebookType("same", (1.0, 1.0 + 1e-12))
