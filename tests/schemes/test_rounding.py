"""Ways of rounding, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, TensorScheme, fake_quantize, quantize
from neural_compressor.schemes.rounding import ROUNDINGS, round_to_whole

BLOCKS = ["mxint8", "mxint4", "mxint2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4"]


def by_fractions(value: float, rounding: str) -> float:
    whole, rest = divmod(abs(Fraction(value)), 1)
    up = {
        "even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "nearest": rest >= Fraction(1, 2),
    }
    return math.copysign(float(whole + up.get(rounding, False)), value)


@given(st.floats(-1e6, 1e6, width=32) | st.integers(-1000, 1000).map(lambda n: n / 2))
def test_a_number_goes_where_exact_arithmetic_says(value: float) -> None:
    for rounding in ("even", "nearest", "floor"):
        wanted = by_fractions(value, rounding)
        for array in (np.float32([value]), torch.tensor([value], dtype=torch.float32)):
            found = float(round_to_whole(array, rounding)[0])
            assert (found, math.copysign(1, found)) == (wanted, math.copysign(1, wanted))


def test_numbers_just_below_a_half_are_not_lifted() -> None:
    value = np.nextafter(np.float32(0.5), np.float32(0))
    assert round_to_whole(np.float32([value, -value]), "nearest").tolist() == [0.0, 0.0]


def test_dither_is_right_in_the_mean_and_the_same_everywhere() -> None:
    x = np.float32([0.25, -0.9, 3.5, 7.0]).repeat(40_000)
    rounded = round_to_whole(x, "dither")
    means = rounded.reshape(4, -1).mean(axis=1)
    assert np.abs(means - [0.25, -0.9, 3.5, 7.0]).max() < 0.01
    assert np.abs(rounded - x).max() < 1
    assert np.array_equal(rounded, round_to_whole(torch.from_numpy(x), "dither").numpy())


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", BLOCKS)
def test_codes_and_values_agree_in_both_libraries(name: str, rounding: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    scheme = TensorScheme(dtype(name), rounding=rounding)
    values = fake_quantize(x, scheme)
    assert np.array_equal(quantize(x, scheme).dequantize(), values)
    assert np.array_equal(quantize(x, scheme).pack().unpack().dequantize(), values)
    assert np.array_equal(fake_quantize(torch.from_numpy(x), scheme).numpy(), values)


def test_a_scheme_says_its_rounding() -> None:
    scheme = OpScheme(
        TensorScheme(dtype("mxfp4"), rounding="floor"), TensorScheme(dtype("mxfp8"), rounding="dither"), "dynamic"
    )
    assert OpScheme.from_dict(scheme.to_dict()) == scheme
    assert "rounding" not in TensorScheme(dtype("mxfp4")).to_dict()
    with pytest.raises(ConfigError, match="unknown rounding 'up'"):
        TensorScheme(dtype("mxfp4"), rounding="up")
    for name in ("int8", "nf4", "bf16", "fp8_e4m3"):
        with pytest.raises(ConfigError, match="is for block formats"):
            TensorScheme(dtype(name), rounding="floor")
    with pytest.raises(ConfigError, match="chooses codes itself"):
        OpScheme(scheme.weight, mode="weight_only", method=Method("gptq"))


def test_the_output_of_an_op_is_a_float() -> None:
    scheme = OpScheme(TensorScheme(dtype("mxfp4")), mode="weight_only", output=TensorScheme(dtype("bf16")))
    assert OpScheme.from_dict(scheme.to_dict()) == scheme
    with pytest.raises(ConfigError, match="rounded to a float type, not to int8"):
        OpScheme(TensorScheme(dtype("mxfp4")), mode="weight_only", output=TensorScheme(dtype("int8")))


def test_a_float_of_16_bits_beside_a_quantized_weight_comes_back() -> None:
    scheme = OpScheme(TensorScheme(dtype("mxfp4")), TensorScheme(dtype("bf16")), "dynamic")
    assert OpScheme.from_dict(scheme.to_dict()) == scheme
