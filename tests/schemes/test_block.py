"""Block formats against a slow loop over blocks, in plain Python."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.dtypes import BlockType, dtype
from neural_compressor.schemes import TensorScheme, quantize
from neural_compressor.schemes.block import tensor_scale_over

ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "mxint8": np.int8,
    "nvfp4": ml_dtypes.float4_e2m1fn,
}


def rounded(value: float, name: str) -> float:
    """The nearest element, saturating."""
    if ELEMENTS[name] is np.int8:
        return float(min(max(round(value), -128), 127))
    limit = float(ml_dtypes.finfo(ELEMENTS[name]).max)
    return float(np.float32(min(max(value, -limit), limit)).astype(ELEMENTS[name]))


def by_loop(row: list[float], name: str, tensor_peak: float) -> tuple[list[float], list[float]]:
    """Values and scales of a row, block by block, as OCP MX v1.0 (6.3) and NVIDIA describe."""
    block = 16 if name == "nvfp4" else 32
    values: list[float] = []
    scales: list[float] = []
    for start in range(0, len(row), block):
        part = row[start : start + block]
        peak = max(abs(v) for v in part)
        whole = np.float32(1)
        if name == "nvfp4" and tensor_peak:
            whole = max(np.float32(tensor_peak) / np.float32(448 * 6), np.float32(2.0**-126))
            whole = np.float32(1) / (np.float32(1) / whole)  # files hold its inverse
        if peak == 0:
            scale = 1.0
        elif name == "nvfp4":
            wanted = np.float32(peak) / np.float32(6) / whole
            scale = float(max(wanted, np.float32(2.0**-9)).astype(ml_dtypes.float8_e4m3fn))
        else:
            largest = 127.0 if name == "mxint8" else float(ml_dtypes.finfo(ELEMENTS[name]).max)
            exponent = math.frexp(peak)[1] - 1 - (math.frexp(largest)[1] - 1)
            lowest = -127 - 6 if name == "mxint8" else -127  # an int8 is a number of 64ths
            scale = 2.0 ** max(min(exponent, 127), lowest)
        step = np.float32(scale) * whole
        values += [float(np.float32(rounded(float(np.float32(v) / step), name)) * step) for v in part]
        scales.append(scale)
    return values, scales


@pytest.mark.parametrize("name", ELEMENTS)
def test_blocks_are_quantized_as_specified(name: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6, 75)) * np.exp2(rng.integers(-12, 12, (6, 75)))).astype(np.float32)
    x[1, :40] = 0.0
    x[2, 32:64] *= np.float32(1e-9)
    x[3, :32] *= np.exp2(np.float32(-126) - np.log2(np.abs(x[3, :32]).max()))  # denormals too
    x[4, :32] = np.float32(2.0**-149) * np.arange(-16, 16, dtype=np.float32)
    check(x, name)


@settings(max_examples=100)
@given(
    npst.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 70)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    st.sampled_from(sorted(ELEMENTS)),
)
def test_any_numbers_are_quantized_as_specified(x: np.ndarray, name: str) -> None:
    check(x, name)


def check(x: np.ndarray, name: str) -> None:
    q = quantize(x, TensorScheme(dtype(name)))
    peak = float(np.abs(x).max())
    for row in range(len(x)):
        values, scales = by_loop(x[row].tolist(), name, peak)
        assert q.scale[row].tolist() == scales
        assert q.dequantize()[row].tolist() == values


@pytest.mark.parametrize("exponent", [-149, -130, -127, -126, -3, 0, 1, 64, 127])
def test_the_shared_exponent_is_exact_at_powers_of_two(exponent: int) -> None:
    power = np.float32(math.ldexp(1.0, exponent))
    for peak, below in ((power, 0), (np.nextafter(power, np.float32(0)), 1)):
        x = np.zeros((1, 32), np.float32)
        x[0, 5] = peak
        if peak == 0:
            continue
        floor = math.frexp(float(peak))[1] - 1
        assert floor == exponent - below or exponent <= -126
        scale = quantize(x, TensorScheme(dtype("mxfp4"))).scale[0, 0]
        assert float(scale) == 2.0 ** max(floor - 2, -127)


def test_scales_are_stored_as_codes_of_their_type() -> None:
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    for name, reference in (("mxfp4", ml_dtypes.float8_e8m0fnu), ("nvfp4", ml_dtypes.float8_e4m3fn)):
        kind = dtype(name)
        assert isinstance(kind, BlockType)
        q = quantize(x, TensorScheme(kind))
        stored = q.pack().scale
        assert stored.dtype == np.uint8
        assert stored.shape == (4, 64 // kind.block)
        assert np.array_equal(stored.view(reference).astype(np.float32), q.scale)


def test_the_largest_value_of_a_tensor_is_kept_by_nvfp4() -> None:
    x = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    q = quantize(x, TensorScheme(dtype("nvfp4")))
    spot = np.unravel_index(np.abs(x).argmax(), x.shape)
    assert q.dequantize()[spot] == pytest.approx(x[spot], rel=1e-6)


def test_the_scale_of_a_tensor_comes_back_from_its_inverse() -> None:
    """A checkpoint holds that: what is read from it computes the same bits."""
    magnitudes = np.random.default_rng(0).uniform(1e-3, 1e3, 10_000).astype(np.float32)
    scales = tensor_scale_over(magnitudes, dtype("nvfp4"), dtype("fp8_e4m3"))
    np.testing.assert_array_equal(1 / (1 / scales), scales)
    np.testing.assert_allclose(scales, magnitudes / 2688, rtol=2e-7)
