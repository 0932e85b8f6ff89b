"""Linear weights against the arithmetic of schemes and against loops over every value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats import LinearSpec, LinearWeight
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerChannel, PerGroup, TensorScheme, quantize

SIDES = [(True, True), (True, False), (False, True), (False, False)]


def values(rows: int = 6, columns: int = 20, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("signed", "symmetric"), SIDES)
@pytest.mark.parametrize("part", [PerGroup(5), PerGroup(8), PerGroup(64), PER_CHANNEL, PerChannel(-2)])
def test_it_says_what_the_quantized_array_says(bits: int, signed: bool, symmetric: bool, part: PerGroup) -> None:
    q = quantize(values(), TensorScheme(IntType(bits, signed), symmetric, part))
    weight = LinearWeight.from_quantized(q)
    assert weight.codes.dtype == np.uint8
    assert np.array_equal(weight.dequantize(), q.dequantize())
    assert np.array_equal(weight.to_quantized().dequantize(), q.dequantize())
    assert np.array_equal(weight.to_quantized().pack().unpack().dequantize(), q.dequantize())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_symmetric_array_comes_back_bit_for_bit(bits: int) -> None:
    q = quantize(values(), TensorScheme(IntType(bits), True, PerGroup(8)))
    back = LinearWeight.from_quantized(q).to_quantized()
    assert back.scheme == q.scheme
    assert np.array_equal(back.codes, q.codes)
    assert back.codes.dtype == q.codes.dtype
    assert np.array_equal(back.scale, q.scale)


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(1, 9), st.booleans(), st.integers(0, 2**31))
def test_values_follow_the_formula(bits: int, group_size: int, ordered: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = 3, 11
    groups = -(-columns // group_size)
    codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    scale = rng.standard_normal((rows, groups)).astype(np.float32)
    zeros = rng.integers(0, 1 << bits, (rows, groups)).astype(np.int32)
    g_idx = rng.integers(0, groups, columns).astype(np.int32) if ordered else None
    found = LinearWeight(codes, scale, zeros, bits, group_size, g_idx).dequantize()
    for o in range(rows):
        for i in range(columns):
            g = i // group_size if g_idx is None else int(g_idx[i])
            assert found[o, i] == np.float32(int(codes[o, i]) - int(zeros[o, g])) * scale[o, g]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [4, 7])
def test_columns_quantized_in_another_order_go_back_to_their_places(symmetric: bool, group_size: int) -> None:
    x, order = values(), np.random.default_rng(3).permutation(20)
    q = quantize(x[:, order], TensorScheme(dtype("int4"), symmetric, PerGroup(group_size)))
    weight = LinearWeight.from_quantized(q, order=order)
    expected = np.empty_like(x)
    expected[:, order] = q.dequantize()
    assert np.array_equal(weight.dequantize(), expected)
    assert weight.spec == LinearSpec(4, group_size, symmetric, act_order=True)
    # A kernel takes the columns, and its inputs, group after group.
    assert weight.order is not None
    assert np.array_equal(weight.to_quantized().dequantize(), expected[:, weight.order])


def test_groups_of_unequal_sizes_have_no_quantized_array() -> None:
    weight = LinearWeight(
        np.zeros((2, 4), np.uint8), np.ones((2, 2), np.float32), None, 4, 2, np.asarray([0, 0, 0, 1], np.int32)
    )
    assert weight.dequantize().shape == (2, 4)
    with pytest.raises(FormatError, match="groups of 2"):
        weight.to_quantized()


def test_torch_and_numpy_agree() -> None:
    order = np.random.default_rng(3).permutation(20)
    scheme = TensorScheme(dtype("int3"), False, PerGroup(8))
    ours = LinearWeight.from_quantized(quantize(values()[:, order], scheme), order)
    theirs = LinearWeight.from_quantized(
        quantize(torch.from_numpy(values()[:, order]), scheme), torch.from_numpy(order)
    )
    assert np.array_equal(ours.dequantize(), theirs.dequantize().numpy())
    assert np.array_equal(ours.codes, theirs.codes.numpy())
    assert np.array_equal(ours.column_groups, theirs.column_groups.numpy())


def test_scales_of_half_precision_are_computed_with_in_float32() -> None:
    weight = LinearWeight(np.full((1, 2), 15, np.uint8), np.float16([[0.1]]), None, 4, -1)
    assert weight.dequantize().dtype == np.float32
    assert weight.dequantize()[0, 0] == np.float32(7) * np.float32(np.float16(0.1))
    assert weight.to_quantized().scale.dtype == np.float32


def good() -> LinearWeight:
    return LinearWeight(np.zeros((4, 6), np.uint8), np.ones((4, 2), np.float32), None, 4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 9}, "1 to 8 bits"),
        ({"group_size": 0}, "at least one column"),
        ({"codes": np.zeros((4, 6), np.int8)}, "uint8 numbers up to 15, found int8"),
        ({"codes": np.full((4, 6), 16, np.uint8)}, "up to 16"),
        ({"codes": np.zeros(6, np.uint8)}, "shape \\(out, in\\)"),
        ({"scale": np.ones((4, 3), np.float32)}, "a scale of shape \\(4, 2\\), not \\(4, 3\\)"),
        ({"zero_point": np.ones((2, 4), np.int32)}, "a zero_point of shape"),
        ({"g_idx": np.zeros(4, np.int32)}, "a g_idx of shape \\(6,\\)"),
        ({"bias": np.zeros(6, np.float32)}, "a bias of shape \\(4,\\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        replace(good(), **change)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (TensorScheme(dtype("nf4"), True, PerGroup(4)), "matrix of integers"),
        (TensorScheme(dtype("int16"), True, PerGroup(4)), "up to 8 bits"),
        (TensorScheme(dtype("int4"), True, PER_TENSOR), "per group or per output channel"),
        (TensorScheme(dtype("int4"), True, PerChannel(1)), "per group or per output channel"),
    ],
)
def test_other_quantized_arrays_are_refused(scheme: TensorScheme, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        LinearWeight.from_quantized(quantize(values(), scheme))
