"""Rounding to the nearest value of a data type, against ml_dtypes and brute force."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.dtypes import CodebookType, FloatType, IntType, dtype
from neural_compressor.schemes.grid import decode, encode, nearest, step_size

REFERENCES = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}


def codes_of(x: np.ndarray, name: str) -> np.ndarray:
    short = x.astype(REFERENCES[name])
    return short.view(np.uint16 if short.itemsize == 2 else np.uint8).astype(np.int64)


def tricky(name: str) -> np.ndarray:
    """Every value, every tie between neighbours, and the float32 numbers on both sides of each tie."""
    grid = np.asarray(dtype(name).grid)
    ties = ((grid[:-1] + grid[1:]) / 2).astype(np.float32)
    assert np.array_equal(ties.astype(np.float64), (grid[:-1] + grid[1:]) / 2), "the ties themselves are not float32"
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    return np.concatenate([grid.astype(np.float32), ties, up, down, np.float32([-0.0])])


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_codes_are_those_of_ml_dtypes(name: str, library: str) -> None:
    kind = dtype(name)
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(50_000) * np.exp2(rng.uniform(-20, np.log2(kind.max), 50_000))
    x = np.concatenate([tricky(name), np.clip(spread, kind.min, kind.max).astype(np.float32)])
    ours = encode(torch.from_numpy(x) if library == "torch" else x, kind)
    assert np.array_equal(np.asarray(ours), codes_of(x, name))
    shorter = nearest(torch.from_numpy(x) if library == "torch" else x, kind)
    assert np.array_equal(np.asarray(shorter), x.astype(REFERENCES[name]).astype(np.float32))


@pytest.mark.parametrize("name", [*REFERENCES, "e8m0"])
def test_all_codes_decode_as_in_ml_dtypes(name: str) -> None:
    kind = dtype(name)
    codes = np.arange(1 << kind.bits, dtype=np.uint16 if kind.bits == 16 else np.uint8)
    reference = codes.view(REFERENCES.get(name, ml_dtypes.float8_e8m0fnu)).astype(np.float32)
    # Infinities are no numbers of a grid.
    reference[np.isinf(reference)] = np.nan
    assert np.array_equal(decode(codes.astype(np.int32), kind), reference, equal_nan=True)


@pytest.mark.parametrize("name", REFERENCES)
def test_what_is_too_large_saturates(name: str) -> None:
    kind = dtype(name)
    x = np.float32([kind.max, -kind.max, 3.4e38, -3.4e38])
    if name != "bf16":
        x = np.append(x, np.nextafter(np.float32(kind.max), np.float32(np.inf)))
    assert np.array_equal(decode(encode(x, kind), kind), np.sign(x) * np.float32(kind.max))
    assert np.array_equal(nearest(x, kind), np.sign(x) * np.float32(kind.max))


def test_powers_of_two_are_exact_in_e8m0() -> None:
    powers = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)
    assert np.array_equal(encode(powers, dtype("e8m0")), np.arange(255))


@pytest.mark.parametrize("kind", [IntType(b, s) for b in (1, 2, 4, 8) for s in (True, False)], ids=lambda k: k.name)
def test_integers_round_half_to_even(kind: IntType) -> None:
    x = np.arange(kind.min - 2, kind.max + 2, 0.25, dtype=np.float32)
    expected = [min(max(round(v), kind.min), kind.max) for v in x.tolist()]  # Python rounds half to even
    assert encode(x, kind).tolist() == expected
    assert nearest(x, kind).tolist() == expected


@settings(max_examples=100)
@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=20, unique=True),
    st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=30),
)
def test_a_codebook_rounds_to_the_nearest_and_ties_to_the_even_code(values: list[float], xs: list[float]) -> None:
    kind = CodebookType("drawn", tuple(values))
    middles = [(a + b) / 2 for a, b in zip(kind.grid, kind.grid[1:], strict=False)]
    x = np.float32([*xs, *middles])
    for value, code in zip(x.tolist(), encode(x, kind).tolist(), strict=True):
        gaps = [abs(Fraction(v) - Fraction(value)) for v in kind.values]
        candidates = [c for c, gap in enumerate(gaps) if gap == min(gaps)]
        even = [c for c in candidates if c % 2 == 0]
        assert code in (even or candidates)


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(0, 4), st.sampled_from(["ieee", "nan", "none"]), st.booleans(), st.booleans())
def test_any_float_format_rounds_to_the_nearest(e: int, m: int, specials: str, signed: bool, subnormals: bool) -> None:
    kind = FloatType("drawn", e, m, specials=specials, signed=signed, subnormals=subnormals)
    grid = np.asarray(kind.grid)
    x = np.random.default_rng(e * 8 + m).uniform(1.2 * grid[0] - 0.1, 1.2 * grid[-1], 500).astype(np.float32)
    gaps = np.abs(grid[None, :] - x.astype(np.float64)[:, None])
    found = decode(encode(x, kind), kind).astype(np.float64)
    assert np.array_equal(np.abs(found - x), gaps.min(axis=1))
    assert np.array_equal(nearest(x, kind), found.astype(np.float32))


def test_steps_are_finite_however_few_the_largest_number_has() -> None:
    largest = torch.tensor([torch.finfo(torch.float32).max])
    for steps in np.random.default_rng(0).random(1000):
        assert torch.isfinite(step_size(largest, float(steps))).all()
