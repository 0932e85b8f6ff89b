"""Learned rounding against all roundings there are, and against its error computed sample by sample."""

import itertools

import numpy as np
import pytest
import torch

from neural_compressor.algorithms.learned_rounding import InputMoments, learned_rounding
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import PER_CHANNEL, TensorScheme, in_pairs, is_pair_safe, quantize, quantize_pairs

INT4 = TensorScheme(dtype("int4"), granularity=PER_CHANNEL)
UINT3 = TensorScheme(dtype("uint3"), symmetric=False, granularity=PER_CHANNEL)
ONE_SCALE = TensorScheme(dtype("int4"))


def layer(seed, groups=2, outputs=3, inputs=7, vectors=40):
    """A weight, inputs that depend on each other, and those of the float model, a little apart."""
    draw = np.random.default_rng(seed)
    weight = draw.normal(size=(groups, outputs, inputs)).astype(np.float32)
    mixed = draw.normal(size=(groups, vectors, 3)) @ draw.normal(size=(groups, 3, inputs)) + 0.5
    x = (mixed + 0.3 * draw.normal(size=mixed.shape)).astype(np.float32)
    return weight, x, (x + 0.1 * draw.normal(size=x.shape)).astype(np.float32)


def mean_squares(weight, x, reference, values, centred):
    """By loops: the mean of (q x - w r)² of each row; centred, what is left when the best bias is added."""
    found = []
    for group, rows in enumerate(values.reshape(weight.shape)):
        for row, wanted in zip(rows, weight[group], strict=True):
            off = np.array([row @ a - wanted @ b for a, b in zip(x[group], reference[group], strict=True)], np.float64)
            found.append(np.mean((off - off.mean() * centred) ** 2))
    return np.array(found)


@pytest.mark.parametrize("centred", [False, True])
def test_the_error_is_that_of_the_outputs_but_for_a_constant(centred):
    weight, x, reference = layer(0)
    seen = InputMoments(weight)
    for part in (slice(0, 10), slice(10, None)):
        seen.update(x[:, part], reference[:, part])
    error = seen.error(centred, damping=0.0)
    flat = weight.reshape(-1, weight.shape[2])
    one, other = quantize(flat, INT4).dequantize(), quantize(flat, ONE_SCALE).dequantize()
    expected = mean_squares(weight, x, reference, one, centred) - mean_squares(weight, x, reference, other, centred)
    np.testing.assert_allclose(error(one) - error(other), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheme", [INT4, UINT3, ONE_SCALE], ids=lambda scheme: scheme.dtype.name)
def test_beside_every_rounding_up_or_down(scheme):
    nearest, found, best = 0.0, 0.0, 0.0
    for seed in range(8):
        weight, x, reference = layer(seed, groups=1, outputs=2, inputs=8)
        seen = InputMoments(weight)
        seen.update(x, reference)
        error, start = seen.error(centred=False), quantize(weight[0], scheme)
        array = learned_rounding(error, start)
        cost = error(array.dequantize())
        assert cost.sum() <= error(start.dequantize()).sum() + 1e-6
        scale = np.broadcast_to(np.reshape(array.scale, (-1, 1)), (2, 1))
        zero = 0 if array.zero_point is None else np.reshape(array.zero_point, (-1, 1)).astype(np.float32)
        low, high = (0, 7) if scheme is UINT3 else (-8, 7)
        exact = np.clip(weight[0] / scale + zero, low, high)
        assert np.all((array.codes >= np.floor(exact)) & (array.codes <= np.ceil(exact)))
        ups = np.array(list(itertools.product((0, 1), repeat=8)), np.float32)
        all_of_them = [
            error(((np.minimum(np.floor(exact) + up, high) - zero) * scale).astype(np.float32)) for up in ups
        ]
        best += np.min(all_of_them, axis=0).sum()
        nearest += error(((np.round(exact) - zero) * scale).astype(np.float32)).sum()
        found += cost.sum()
    # Codes that move one at a time miss some of what two at once would gain, the more the coarser the grid.
    assert best - 1e-6 <= found <= best + 0.4 * (nearest - best)


def test_numpy_and_torch_round_alike():
    weight, x, reference = layer(3)
    arrays = []
    for library in (np.asarray, torch.as_tensor):
        seen = InputMoments(library(weight))
        seen.update(library(x), library(reference))
        start = quantize(library(weight.reshape(6, 7)), INT4)
        arrays.append(np.asarray(learned_rounding(seen.error(centred=True), start).codes))
    assert np.array_equal(*arrays)


def test_pairs_stay_within_what_a_kernel_adds():
    draw = np.random.default_rng(5)
    weight = np.abs(draw.normal(size=(1, 16, 32))).astype(np.float32) + 0.5  # all of one sign: pairs are at their limit
    x = draw.normal(size=(1, 200, 4)) @ draw.normal(size=(1, 4, 32))
    seen, partners = InputMoments(weight), in_pairs(32)
    seen.update(x.astype(np.float32), x.astype(np.float32))
    error = seen.error(centred=False)
    start = quantize_pairs(weight[0], TensorScheme(dtype("int8"), granularity=PER_CHANNEL, pair_safe=True), partners)
    array = learned_rounding(error, start, partners=partners)
    assert is_pair_safe(array.codes, partners)
    assert np.array_equal(array.scale, start.scale)
    assert error(array.dequantize()).sum() < 0.5 * error(start.dequantize()).sum()
    assert not is_pair_safe(learned_rounding(error, start).codes, partners), "else this shows nothing"


def test_a_bias_takes_up_the_mean():
    weight, x, _ = layer(1)
    seen = InputMoments(weight)
    seen.update(x, x)
    error = seen.error(centred=True)
    values = learned_rounding(error, quantize(weight.reshape(6, 7), INT4)).dequantize()
    off = np.einsum("gvi,goi->gvo", x, weight - values.reshape(weight.shape))
    np.testing.assert_allclose(error.bias_shift(values), off.mean(1).reshape(-1), rtol=1e-3, atol=1e-5)


def test_inputs_that_say_nothing_are_refused():
    weight, x, reference = layer(2)
    with pytest.raises(CalibrationError, match="no data reached"):
        InputMoments(weight).error(centred=True)
    with pytest.raises(CalibrationError, match="of the same places"):
        InputMoments(weight).update(x, reference[:, 1:])
    seen = InputMoments(weight)
    seen.update(np.where(x > 2, np.float32(np.nan), x), reference)
    with pytest.raises(CalibrationError, match="NaN or Inf"):
        seen.error(centred=True)
