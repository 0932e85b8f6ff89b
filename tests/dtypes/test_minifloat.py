"""Small floats against ml_dtypes, over all of their codes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neural_compressor.dtypes import FloatType, dtype, fp32
from neural_compressor.errors import ConfigError

REFERENCES = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}


def all_values(name: str) -> np.ndarray:
    """The values of all codes, as the reference reads them."""
    bits = dtype(name).bits
    codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return codes.view(REFERENCES[name]).astype(np.float64)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_grid_is_every_finite_value(name: str) -> None:
    values = all_values(name)
    expected = np.unique(values[np.isfinite(values)])
    assert np.array_equal(np.asarray(dtype(name).grid), expected)


@pytest.mark.parametrize("name", REFERENCES)
def test_positive_values_come_in_code_order(name: str) -> None:
    kind = dtype(name)
    assert isinstance(kind, FloatType)
    assert np.array_equal(np.asarray(kind.positive), all_values(name)[: len(kind.positive)])
    # The code after the last one is a special, the sign bit, or the end.
    after = all_values(name)[len(kind.positive) :][:1]
    assert len(kind.positive) == 1 << (kind.bits - kind.signed) or not np.isfinite(after)


@pytest.mark.parametrize("name", REFERENCES)
def test_bounds(name: str) -> None:
    info = ml_dtypes.finfo(REFERENCES[name])
    assert dtype(name).max == float(info.max)
    assert dtype(name).min == (float(info.min) if dtype(name).signed else 2.0**-127)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exponent": 4, "mantissa": 3, "specials": "inf"}, "unknown specials 'inf'"),
        ({"exponent": 1, "mantissa": 3}, "2 to 8 exponent bits"),
        ({"exponent": 9, "mantissa": 3}, "2 to 8 exponent bits"),
        ({"exponent": 4, "mantissa": 24}, "0 to 23 mantissa bits"),
        ({"exponent": 8, "mantissa": 3, "specials": "none"}, "beyond what a float32 can be"),
    ],
)
def test_formats_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FloatType("odd", **fields)


def test_fp32_is_not_listed() -> None:
    assert (fp32.bits, fp32.max) == (32, float(np.finfo(np.float32).max))
    with pytest.raises(ConfigError, match="too many"):
        _ = fp32.grid
