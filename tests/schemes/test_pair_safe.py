"""Int8 weights on which kernels without VNNI cannot overflow."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PerGroup,
    TensorScheme,
    any_cpu_weight,
    in_pairs,
    is_pair_safe,
    quantize,
    quantize_pairs,
    reduced,
)

SCHEME = TensorScheme(dtype("int8"), granularity=PER_CHANNEL, pair_safe=True)


def saturating_sum(activations: np.ndarray, weights: np.ndarray) -> int:
    """What a kernel adds up that sums two products in 16 bits, in the order of the columns."""
    total = 0
    for k in range(0, len(weights) - 1, 2):
        pair = int(activations[k]) * int(weights[k]) + int(activations[k + 1]) * int(weights[k + 1])
        total += max(-32768, min(32767, pair))
    return total + (int(activations[-1]) * int(weights[-1]) if len(weights) % 2 else 0)


def test_every_safe_pair_is_exact_and_every_other_one_is_not():
    # The law itself, by brute force over all pairs of codes and the extreme activations.
    for first, second in itertools.product(range(-127, 128, 3), range(-127, 128)):
        pair = np.array([first, second])
        exact = all(
            saturating_sum(np.array(x), pair) == x[0] * first + x[1] * second
            for x in itertools.product((0, 255), (0, 255))
        )
        assert exact == is_pair_safe(pair[None].astype(np.int8), in_pairs(2))


@settings(max_examples=60)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 17),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([1.0, 3.0, 30.0]),
)
def test_codes_never_overflow_and_are_near(rows, columns, seed, spread):
    rng = np.random.default_rng(seed)
    matrix = (rng.normal(size=(rows, columns)) * spread ** rng.normal(size=(rows, 1))).astype(np.float32)
    found = quantize_pairs(matrix, SCHEME, in_pairs(columns))
    codes = np.asarray(found.codes)
    assert codes.dtype == np.int8
    assert is_pair_safe(codes, in_pairs(columns))
    most = np.full(columns, 255)
    for row in codes:
        for x in (most, most * (row > 0), most * (row < 0)):
            assert saturating_sum(x, row) == int((x * row.astype(int)).sum())
    # No worse than the plain way to be safe, half of the range, by more than rounding.
    half = np.asarray(quantize(matrix, reduced(TensorScheme(dtype("int8"), granularity=PER_CHANNEL))).dequantize())
    step = np.abs(matrix).max() / 64
    assert np.abs(np.asarray(found.dequantize()) - matrix).max() <= np.abs(half - matrix).max() + step


def test_far_less_is_lost_than_with_one_bit_less():
    matrix = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)

    def error(values):
        return float(((np.asarray(values) - matrix) ** 2).mean())

    plain = error(quantize(matrix, TensorScheme(dtype("int8"), granularity=PER_CHANNEL)).dequantize())
    safe = error(quantize_pairs(matrix, SCHEME, in_pairs(256)).dequantize())
    seven = error(quantize(matrix, reduced(SCHEME)).dequantize())
    assert plain < safe < 2.2 * plain
    assert seven > 3.5 * plain


def test_a_weight_without_large_pairs_is_quantized_as_ever():
    matrix = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    matrix[:, 0], matrix[:, 1] = 9.0, 0.0  # one large weight a row, with nothing beside it
    plain = quantize(matrix, TensorScheme(dtype("int8"), granularity=PER_CHANNEL))
    found = quantize_pairs(matrix, SCHEME, in_pairs(64))
    np.testing.assert_array_equal(found.codes, plain.codes)
    np.testing.assert_array_equal(found.scale, plain.scale)


def test_partners_need_not_be_neighbours():
    matrix = np.float32([[1.0, 0.1, 1.0, 0.1]])
    apart = np.array([2, 1, 0, 3])  # columns 0 and 2 are added in 16 bits, the others stand alone
    codes = np.asarray(quantize_pairs(matrix, SCHEME, apart).codes)
    assert is_pair_safe(codes, apart)
    assert int(codes[0, 0]) + int(codes[0, 2]) <= 128


def test_one_scale_for_the_tensor():
    matrix = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
    found = quantize_pairs(matrix, TensorScheme(dtype("int8"), granularity=PER_TENSOR, pair_safe=True), in_pairs(32))
    assert np.asarray(found.scale).shape == ()
    assert is_pair_safe(found.codes, in_pairs(32))


def test_torch_gives_what_numpy_gives():
    matrix = np.random.default_rng(2).normal(size=(16, 33)).astype(np.float32)
    ours, theirs = (quantize_pairs(m, SCHEME, in_pairs(33)) for m in (matrix, torch.from_numpy(matrix)))
    np.testing.assert_array_equal(ours.codes, theirs.codes.numpy())
    np.testing.assert_array_equal(ours.scale, theirs.scale.numpy())


def test_which_weights_become_safe_and_how():
    int8 = TensorScheme(dtype("int8"), granularity=PER_CHANNEL)
    assert any_cpu_weight(int8).pair_safe
    assert any_cpu_weight(TensorScheme(dtype("int8"), symmetric=False)).reduce_range
    assert any_cpu_weight(TensorScheme(dtype("int4"))) == TensorScheme(dtype("int4"))
    assert not any_cpu_weight(reduced(int8)).pair_safe
    assert TensorScheme.from_dict(any_cpu_weight(int8).to_dict()) == any_cpu_weight(int8)


@pytest.mark.parametrize("kind", [{"dtype": dtype("int4")}, {"symmetric": False}, {"granularity": PerGroup(4)}])
def test_other_schemes_are_refused(kind):
    scheme = TensorScheme(**{"dtype": dtype("int8"), "pair_safe": True, **kind})
    with pytest.raises(ConfigError, match="safe in pairs"):
        quantize_pairs(np.ones((2, 4), np.float32), scheme, in_pairs(4))
