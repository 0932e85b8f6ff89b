"""Quantization against brute force over all codes, and the laws it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from neural_compressor.dtypes import DTYPES, IntType, dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PerChannel,
    PerGroup,
    QParams,
    TensorScheme,
    choose_qparams,
    fake_quantize,
    quantize,
    quantize_with,
)
from neural_compressor.schemes.affine import integer_limits

INTEGERS = [f"{u}int{bits}" for u in ("", "u") for bits in range(1, 9)]
FLOATS = st.floats(-100, 100, width=32)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("reduce_range", [False, True], ids=["", "reduced"])
def test_integer_codes_are_the_nearest_of_all(name: str, symmetric: bool, reduce_range: bool) -> None:
    if reduce_range and dtype(name).bits == 1:
        pytest.skip("no bit to spare")
    scheme = TensorScheme(dtype(name), symmetric, reduce_range=reduce_range)
    x = np.random.default_rng(0).normal(0.3, 1, 300).astype(np.float32)
    q = quantize(x, scheme)
    low, high = integer_limits(scheme)
    zero = 0 if q.zero_point is None else int(q.zero_point)
    grid = (np.arange(low, high + 1) - zero) * np.float64(q.scale)
    gap = np.abs(grid[None, :] - x[:, None].astype(np.float64)).min(axis=1)
    assert q.codes.min() >= low
    assert q.codes.max() <= high
    np.testing.assert_allclose(np.abs(q.dequantize() - x.astype(np.float64)), gap, atol=1e-6)


@settings(max_examples=200)
@given(
    npst.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=FLOATS),
    st.sampled_from([f"{u}int{bits}" for u in ("", "u") for bits in (2, 3, 4, 5, 8, 12)]),
    st.booleans(),
    st.sampled_from([PER_TENSOR, PER_CHANNEL, PerChannel(1), PerGroup(3), PerGroup(64)]),
)
def test_the_error_is_at_most_half_a_step(x: np.ndarray, name: str, symmetric: bool, granularity: object) -> None:
    scheme = TensorScheme(dtype(name), symmetric, granularity)  # type: ignore[arg-type]
    q = quantize(x, scheme)
    step = fake_step(q.scale, x.shape, granularity)
    # In float32 the division and the multiplication round as well, each by at most 2**-24 of its result.
    slack = 2**-21 * np.abs(x).max() + 1e-37
    error = np.abs(q.dequantize().astype(np.float64) - x)
    if symmetric and not dtype(name).signed:
        # Around a zero point of 2**(bits - 1) the top code is half a step short of the largest value.
        step = step * (1 + 2**-20)
    assert np.all(error <= step / 2 + slack)


def fake_step(scale: np.ndarray, shape: tuple[int, ...], granularity: object) -> np.ndarray:
    """The scale of each element, by plain indexing."""
    out = np.empty(shape)
    for row, column in np.ndindex(shape):
        if isinstance(granularity, PerChannel):
            out[row, column] = scale[(row, column)[granularity.axis]]
        elif isinstance(granularity, PerGroup):
            out[row, column] = scale[row, column // granularity.size]
        else:
            out[row, column] = scale
    return out


@settings(max_examples=60)
@given(npst.arrays(np.float32, st.integers(2, 40), elements=FLOATS), st.sampled_from(DTYPES.names()))
def test_order_is_kept(x: np.ndarray, name: str) -> None:
    kind = dtype(name)
    if hasattr(kind, "block"):  # blocks have scales of their own
        return
    values = quantize(np.sort(x), TensorScheme(kind)).dequantize()
    assert np.all(np.diff(values) >= 0)


@settings(max_examples=100)
@given(
    npst.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 40)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    st.sampled_from(DTYPES.names()),
    st.sampled_from([PER_TENSOR, PER_CHANNEL, PerChannel(-1), PerGroup(5)]),
)
def test_torch_and_numpy_agree_in_every_bit(x: np.ndarray, name: str, granularity: object) -> None:
    for symmetric in (True, False) if isinstance(dtype(name), IntType) else (True,):
        scheme = TensorScheme(dtype(name), symmetric, granularity)  # type: ignore[arg-type]
        ours, theirs = quantize(x, scheme), quantize(torch.from_numpy(x), scheme)
        for a, b in zip(ours.pack().arrays().values(), theirs.pack().arrays().values(), strict=True):
            assert np.array_equal(a, b.numpy())
        assert np.array_equal(ours.dequantize(), theirs.dequantize().numpy())
        assert np.array_equal(fake_quantize(x, scheme), fake_quantize(torch.from_numpy(x), scheme).numpy())


def test_values_outside_a_given_range_saturate() -> None:
    scheme = TensorScheme(dtype("uint8"), symmetric=False)
    q = quantize(np.float32([-9.0, 0.0, 1.0, 9.0]), scheme, low=0.0, high=2.55)
    assert q.codes.tolist() == [0, 0, 100, 255]


def test_a_range_may_be_of_another_library() -> None:
    scheme = TensorScheme(dtype("int8"), True, PER_CHANNEL)
    x = torch.tensor([[1.0, 3.0], [5.0, -2.0]])
    q = quantize(x, scheme, low=np.float32([-2.0, -2.0]), high=np.float32([2.0, 4.0]))
    assert isinstance(q.codes, torch.Tensor)
    assert q.codes.tolist() == [[64, 127], [127, -64]]
    back = quantize(
        x.numpy(), scheme, low=torch.tensor([-2.0, -2.0]), high=torch.tensor([2.0, 4.0], requires_grad=True)
    )
    assert back.codes.tolist() == q.codes.tolist()


def test_known_parameters_are_used_as_they_are() -> None:
    scheme = TensorScheme(dtype("uint8"), symmetric=False)
    x = np.float32([-1.0, 0.24, 0.26, 200.0])
    params = QParams(np.float32(0.5), np.int32(10))
    assert quantize_with(x, scheme, params).codes.tolist() == [8, 10, 11, 255]
    assert fake_quantize(x, scheme, params).tolist() == [-1.0, 0.0, 0.5, 122.5]
    assert fake_quantize(torch.from_numpy(x), scheme, params).tolist() == [-1.0, 0.0, 0.5, 122.5]


def test_a_parameter_of_a_model_is_cut_off_from_its_gradient() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 6))
    q = quantize(weight, TensorScheme(dtype("int4"), True, PerGroup(4)))
    assert not q.scale.requires_grad
    assert not q.dequantize().requires_grad


def test_short_floats_are_quantized_as_the_numbers_they_are() -> None:
    x = torch.randn(3, 8).to(torch.bfloat16)
    scheme = TensorScheme(dtype("int8"))
    assert torch.equal(quantize(x, scheme).dequantize(), quantize(x.float(), scheme).dequantize())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_floats_are_those_of_torch(name: str) -> None:
    x = torch.randn(5, 7) * 10
    q = quantize(x, TensorScheme(dtype(name)))
    short = x.to({"bf16": torch.bfloat16, "fp16": torch.float16}[name])
    assert torch.equal(q.dequantize(), short.float())
    assert q.scale is None
    assert q.pack().data.numpy().tobytes() == short.view(torch.uint8).numpy().tobytes()


def test_fp32_is_left_as_it_is() -> None:
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    q = quantize(x, TensorScheme(dtype("fp32")))
    assert np.array_equal(q.dequantize(), x)
    assert np.array_equal(fake_quantize(x, TensorScheme(dtype("fp32"))), x)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused_with_known_parameters_too(bad: float) -> None:
    scheme = TensorScheme(dtype("int8"))
    params = choose_qparams(-1.0, 1.0, scheme)
    with pytest.raises(QuantizationError, match="NaN or Inf"):
        fake_quantize(np.float32([0.0, bad]), scheme, params)
    with pytest.raises(QuantizationError, match="NaN or Inf"):
        quantize(np.float32([0.0, bad]), scheme, low=-1.0, high=1.0)


def test_parameters_without_a_scale_are_refused() -> None:
    with pytest.raises(QuantizationError, match="int8 needs a scale"):
        quantize_with(np.zeros(3, np.float32), TensorScheme(dtype("int8")), QParams(None))


def test_the_last_group_may_be_short() -> None:
    x = np.random.default_rng(5).standard_normal((3, 10)).astype(np.float32)
    scheme = TensorScheme(dtype("int4"), False, PerGroup(4))
    q = quantize(x, scheme)
    assert q.scale.shape == (3, 3)
    alone = TensorScheme(dtype("int4"), False, PER_TENSOR)
    for row in range(3):
        for group, part in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
            single = quantize(x[row, part], alone)
            assert q.codes[row, part].tolist() == single.codes.tolist()
            assert q.scale[row, group] == single.scale
