"""Scales that are quantized themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import double_quant, hqq, quantize_parameter, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme

BYTES = TensorScheme(dtype("uint8"), False, PerGroup(256))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("part", [PerGroup(16), PER_CHANNEL], ids=lambda part: part.name)
def test_scales_are_kept_to_half_a_step_of_their_run(weight: Any, part: Any, symmetric: bool) -> None:
    plain = rtn(weight, TensorScheme(dtype("int4"), symmetric, part))
    both = double_quant(plain, BYTES)
    scale = plain.scale.reshape(-1)
    runs = np.arange(scale.size) // 256
    step = np.asarray([max(0, scale[runs == run].max()) - min(0, scale[runs == run].min()) for run in runs]) / 255
    assert np.all(np.abs(both.qparams.scale.reshape(-1) - scale) <= step * 0.5001)
    np.testing.assert_array_equal(both.scale.dequantize().reshape(-1), both.qparams.scale.reshape(-1))
    np.testing.assert_array_equal(both.codes, plain.codes)
    np.testing.assert_array_equal(both.dequantize(), replace(plain, scale=both.qparams.scale).dequantize())
    stored = both.scale.nbytes_packed
    assert stored == scale.size + -(-scale.size // 256) * 5
    assert both.nbytes_packed == plain.nbytes_packed - 4 * scale.size + stored


def test_weights_given_again_are_rounded_to_the_new_grid(weight: Any) -> None:
    plain = rtn(weight, TensorScheme(dtype("int4"), False, PerGroup(16)))
    coarse = TensorScheme(dtype("uint3"), False, PerGroup(64))
    before, after = double_quant(plain, coarse), double_quant(plain, coarse, weight=weight)
    np.testing.assert_array_equal(before.qparams.scale, after.qparams.scale)
    error = [((q.dequantize() - weight) ** 2).sum() for q in (before, after)]
    assert error[1] < error[0]


def test_no_group_loses_its_scale(weight: Any) -> None:
    weight = weight * np.where(np.arange(96) < 16, 1e4, 1.0).astype(np.float32)
    plain = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)))
    assert (plain.scale < 0).any()
    for scheme in (TensorScheme(dtype("int8"), True, PerGroup(256)), TensorScheme(dtype("int4"), True)):
        both = double_quant(plain, scheme)
        assert np.all(np.sign(both.qparams.scale) == np.sign(plain.scale)), scheme
        assert np.isfinite(double_quant(plain, scheme, weight=weight).dequantize()).all()
    positive = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)), full_range=False)
    assert (positive.scale < positive.scale.max() / 510).any()
    assert np.all(double_quant(positive, BYTES).qparams.scale > 0)


def test_float_zero_points_are_quantized_too(weight: Any) -> None:
    plain = hqq(weight, TensorScheme(dtype("uint4"), False, PerGroup(16)))
    only_zero = double_quant(plain, None, BYTES)
    np.testing.assert_array_equal(only_zero.scale, plain.scale)
    zero = only_zero.zero.dequantize().reshape(plain.zero.shape)
    np.testing.assert_allclose(zero, plain.zero, atol=np.abs(plain.zero).max() / 254)
    np.testing.assert_array_equal(only_zero.dequantize(), replace(plain, zero=zero).dequantize())
    assert only_zero.nbytes_packed == plain.nbytes_packed - 4 * 288 + 288 + 2 * 5
    both = double_quant(plain, BYTES, BYTES)
    assert both.nbytes_packed == only_zero.nbytes_packed - 4 * 288 + 288 + 2 * 5
    coarse = TensorScheme(dtype("uint4"), False, PerGroup(256))
    errors = [((double_quant(plain, coarse, coarse, w).dequantize() - weight) ** 2).sum() for w in (None, weight)]
    assert errors[1] < errors[0]
    np.testing.assert_array_equal(plain.rounded(weight).codes, plain.codes)


def test_zero_stays_zero() -> None:
    values = np.float32([[0.0, 1e-9, -1e-9, 1.0]])
    found = quantize_parameter(values, TensorScheme(dtype("int8"))).dequantize()[0]
    assert found[0] == 0
    assert found[1] > 0 > found[2]


def test_other_types_can_hold_scales(weight: Any) -> None:
    plain = rtn(weight, TensorScheme(dtype("nf4"), True, PerGroup(16)))
    both = double_quant(plain, TensorScheme(dtype("fp8_e4m3"), True, PerGroup(256)))
    np.testing.assert_allclose(both.qparams.scale, plain.scale, rtol=0.07)


def test_bad_input_is_refused(weight: Any) -> None:
    with pytest.raises(QuantizationError, match="no float32 scales worth"):
        double_quant(rtn(weight, TensorScheme(dtype("int4"))), BYTES)
    with pytest.raises(QuantizationError, match="no float32 scales worth"):
        double_quant(rtn(weight, TensorScheme(dtype("mxfp4"))), BYTES)
    plain = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)))
    for name in ("bf16", "mxfp8"):
        with pytest.raises(ConfigError, match="integer, float or codebook"):
            double_quant(plain, TensorScheme(dtype(name)))
    with pytest.raises(QuantizationError, match="zero points of this weight are integers"):
        double_quant(plain, BYTES, BYTES)
    with pytest.raises(QuantizationError, match="quantized already"):
        double_quant(double_quant(plain, BYTES), BYTES)


def test_one_run_for_all_scales(weight: Any) -> None:
    plain = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)))
    whole = double_quant(plain, TensorScheme(dtype("uint8"), False, PER_CHANNEL))
    assert whole.nbytes_packed == plain.nbytes_packed - 4 * 288 + 288 + 5
    np.testing.assert_allclose(whole.qparams.scale, plain.scale, atol=(plain.scale.max() - plain.scale.min()) / 509)


def test_without_a_scheme_nothing_changes(weight: Any) -> None:
    for plain in (
        rtn(weight, TensorScheme(dtype("mxfp4"))),
        hqq(weight, TensorScheme(dtype("uint4"), False, PER_CHANNEL)),
    ):
        assert double_quant(plain, None) is plain


def test_torch_gives_the_same_bits(weight: Any) -> None:
    torch = pytest.importorskip("torch")
    scheme = TensorScheme(dtype("int4"), True, PerGroup(16))
    ours, theirs = (double_quant(rtn(w, scheme), BYTES) for w in (weight, torch.from_numpy(weight)))
    np.testing.assert_array_equal(theirs.scale.codes.numpy(), ours.scale.codes)
    np.testing.assert_array_equal(theirs.dequantize().numpy(), ours.dequantize())


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_small_negative_number_moves_by_a_step_at_most(library: str) -> None:
    values = np.float32([[-5.0, -0.001, 0.001, 5.2]])
    given = values if library == "numpy" else pytest.importorskip("torch").from_numpy(values)
    found = np.asarray(quantize_parameter(given, TensorScheme(dtype("uint8"), False, PerGroup(4))).dequantize())
    np.testing.assert_allclose(found, values, atol=10.2 / 255)
    assert found[0, 1] < 0 < found[0, 2]
