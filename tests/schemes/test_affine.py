"""Scale and zero point against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, TensorScheme, choose_qparams
from neural_compressor.schemes.affine import integer_limits


def sym(name: str, **fields: bool) -> TensorScheme:
    return TensorScheme(dtype(name), symmetric=True, **fields)


def asym(name: str, **fields: bool) -> TensorScheme:
    return TensorScheme(dtype(name), symmetric=False, **fields)


@pytest.mark.parametrize(
    ("scheme", "low", "high", "scale", "zero_point"),
    [
        # int8 symmetric: 2 * max(|low|, |high|) / (127 + 128 - 1)
        (sym("int8"), -2.0, 1.0, 4 / 254, None),
        (sym("int8"), 0.5, 1.0, 2 / 254, None),
        # uint8 symmetric with negative values: 2 * max(|low|, |high|) / 255 around 128
        (sym("uint8"), -2.0, 1.0, 4 / 255, 128),
        (sym("uint8"), -2.0, -1.0, 4 / 255, 128),
        # uint8 symmetric without: the whole of 0..255 for 0..high
        (sym("uint8"), 0.0, 5.1, 0.02, 0),
        (sym("uint8"), 1.0, 5.1, 0.02, 0),
        # int8 asymmetric: (high - low) / 255, zero point round(-128 - low / scale)
        (asym("int8"), -1.0, 1.55, 0.01, -28),
        (asym("int8"), 1.0, 5.1, 0.02, -128),
        (asym("int8"), -5.1, -1.0, 0.02, 127),
        # uint8 asymmetric: the same with 0 for -128
        (asym("uint8"), -1.0, 1.55, 0.01, 100),
        (asym("uint8"), 0.0, 2.55, 0.01, 0),
        (asym("uint8"), 1.0, 2.55, 0.01, 0),
        (asym("uint8"), -2.55, -1.0, 0.01, 255),
        # other widths, same formulas
        (sym("int4"), -7.0, 3.5, 1.0, None),
        (sym("uint4"), -7.5, 3.0, 1.0, 8),
        (sym("uint4"), 0.0, 7.5, 0.5, 0),
        (asym("uint4"), -5.0, 10.0, 1.0, 5),
        (asym("int4"), -5.0, 10.0, 1.0, -3),
        (sym("int16"), -32767.0, 1.0, 1.0, None),
        # reduce_range: one bit less
        (sym("int8", reduce_range=True), -6.4, 1.0, 0.1, None),
        (sym("int8", reduce_range=True), -1.0, 6.4, 0.1, None),
        (sym("uint8", reduce_range=True), -1.0, 6.35, 0.1, 64),
        (sym("uint8", reduce_range=True), 0.0, 1.27, 0.01, 0),
        (asym("uint8", reduce_range=True), -0.27, 1.0, 0.01, 27),
        (asym("int8", reduce_range=True), -0.27, 1.0, 0.01, -37),
        # one bit: -2 and 0, whichever way the codes are signed
        (sym("int1"), -2.0, 1.0, 2.0, None),
        (sym("uint1"), -2.0, 1.0, 2.0, 1),
        (sym("uint1"), 0.0, 3.0, 3.0, 0),
        (asym("uint1"), 0.0, 3.0, 3.0, 0),
        (asym("int1"), -3.0, 0.0, 3.0, 0),
        # minifloats and codebooks: the largest magnitude to the largest value
        (sym("fp8_e4m3"), -896.0, 1.0, 2.0, None),
        (sym("fp8_e5m2"), -1.0, 28672.0, 0.5, None),
        (sym("fp4_e2m1"), -3.0, 3.0, 0.5, None),
        (sym("nf4"), -0.25, 0.1, 0.25, None),
        # nothing to map
        (sym("int8"), 0.0, 0.0, 1.0, None),
        (sym("uint8"), 0.0, 0.0, 1.0, 0),
        (asym("int8"), 0.0, 0.0, 1.0, -128),
        (sym("fp8_e4m3"), 0.0, 0.0, 1.0, None),
    ],
    ids=lambda v: f"{v.dtype.name}-{'sym' if v.symmetric else 'asym'}" if isinstance(v, TensorScheme) else None,
)
def test_worked_cases(scheme: TensorScheme, low: float, high: float, scale: float, zero_point: int | None) -> None:
    found = choose_qparams(np.float32(low), np.float32(high), scheme)
    assert found.scale.dtype == np.float32
    assert float(found.scale) == pytest.approx(scale, rel=1e-6)
    if zero_point is None:
        assert found.zero_point is None
    else:
        assert found.zero_point.dtype == np.int32
        assert int(found.zero_point) == zero_point


def test_each_channel_has_its_own() -> None:
    scheme = TensorScheme(dtype("uint8"), True, PER_CHANNEL)
    found = choose_qparams(np.float32([-1.0, 0.0, 0.0]), np.float32([2.55, 2.55, 0.0]), scheme)
    assert found.scale == pytest.approx([0.02, 0.01, 1.0])
    assert found.zero_point.tolist() == [128, 0, 0]


@settings(max_examples=200)
@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([f"{u}int{b}" for u in ("", "u") for b in (1, 2, 3, 8, 16)]),
    st.booleans(),
)
def test_any_range_gives_a_usable_scale(a: float, b: float, name: str, symmetric: bool) -> None:
    scheme = TensorScheme(dtype(name), symmetric)
    found = choose_qparams(np.float32(min(a, b)), np.float32(max(a, b)), scheme)
    assert np.isfinite(found.scale)
    assert found.scale >= 2.0**-126
    if found.zero_point is not None:
        low, high = integer_limits(scheme)
        assert low <= found.zero_point <= high


@pytest.mark.parametrize("name", ["fp8_e4m3", "nf4", "mxfp4", "nvfp4"])
def test_types_without_a_zero_point_cannot_be_asymmetric(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no zero point"):
        choose_qparams(np.zeros(1, np.float32), np.ones(1, np.float32), asym(name))


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_plain_floats_have_no_scale(name: str) -> None:
    assert choose_qparams(-1.0, 1.0, sym(name)).scale is None


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1.0), (0.0, np.inf), (-np.inf, np.inf)])
def test_a_range_must_be_finite(low: float, high: float) -> None:
    with pytest.raises(QuantizationError, match="the range holds NaN or Inf"):
        choose_qparams(np.float32(low), np.float32(high), sym("int8"))


def test_a_range_must_be_in_order() -> None:
    with pytest.raises(QuantizationError, match="low <= high"):
        choose_qparams(np.float32([0.0, 2.0]), np.float32([1.0, 1.0]), sym("int8"))


def test_reduce_range_needs_a_bit_to_take() -> None:
    with pytest.raises(ConfigError, match="int1"):
        integer_limits(TensorScheme(IntType(1), reduce_range=True))
