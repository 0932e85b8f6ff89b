"""The learned rounding of one weight: its steps, its codes, its layouts."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PerGroup,
    QParams,
    TensorScheme,
    fake_quantize,
    qparams_of,
)
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.torch.methods.autoround import rounding as autoround_rounding
from neural_compressor.torch.methods.autoround.rounding import LearnedRounding

GRANULARITIES = {
    "per_tensor": PER_TENSOR,
    "per_channel": PER_CHANNEL,
    "groups": PerGroup(8),
    "short_group": PerGroup(5),
}
SHAPE = (6, 24)

schemes = st.builds(
    TensorScheme,
    st.builds(IntType, st.integers(2, 8), signed=st.booleans()),
    symmetric=st.booleans(),
    granularity=st.sampled_from(list(GRANULARITIES.values())),
    reduce_range=st.booleans(),
)


def make(scheme, seed=0, narrowed=1.0, **options):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SHAPE, generator=generator)
    qparams = qparams_of(weight, scheme)
    qparams = QParams(qparams.scale * narrowed, qparams.zero_point)
    return weight, qparams, LearnedRounding(weight, scheme, qparams, **options)


@given(scheme=schemes, seed=st.integers(0, 99))
def test_learning_may_start_from_any_of_the_two_codes_next_to_a_weight(scheme, seed):
    weight, qparams, nearest = make(scheme, seed)
    low, high = integer_limits(scheme)
    up = torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    start = nearest.result()
    values = start.dequantize()
    between = (weight - values).abs() > 1e-3  # else one of the two is a whole step away
    step = torch.where(weight > values, 1, -1) * (up & between)
    codes = (start.codes.int() + step).clamp(low, high)
    rounding = LearnedRounding(weight, scheme, qparams, codes=codes)
    assert torch.equal(rounding.result().codes.int(), codes)
    rounding.step(torch.randn(SHAPE), rate=0.3, scale_rate=0.01, out=torch.empty(SHAPE))
    rounding.reset()
    assert torch.equal(rounding.result().codes.int(), codes)


class Straight(torch.autograd.Function):
    """Rounding that lets gradients through as if it were not there."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def textbook(weight, scheme, qparams, gradients, rate, scale_rate):
    """The same training by autograd, one scale for each weight, all of it in the shape of the weight."""
    size = {PER_TENSOR: None, PER_CHANNEL: SHAPE[1]}.get(scheme.granularity, getattr(scheme.granularity, "size", None))

    def spread(parameter):
        if size is None:
            return parameter.expand(SHAPE)
        columns = torch.arange(SHAPE[1]) // size
        return parameter.reshape(SHAPE[0], -1)[:, columns]

    low, high = integer_limits(scheme)
    zero = 0.0 if qparams.zero_point is None else spread(qparams.zero_point.float())
    offset = torch.zeros(SHAPE, requires_grad=True)
    factor = torch.ones_like(qparams.scale, requires_grad=True)

    def values():
        scale = spread(qparams.scale * factor)
        codes = torch.clamp(Straight.apply(weight / scale + offset) + zero, min=low, max=high)
        return (codes - zero) * scale

    for gradient in gradients:
        offset.grad = factor.grad = None
        (values() * gradient).sum().backward()
        with torch.no_grad():
            offset.sub_(rate * torch.sign(offset.grad)).clamp_(-0.5, 0.5)
            factor.sub_(scale_rate * torch.sign(factor.grad))
    return values().detach()


@pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("scale_rate", [0.0, 0.03], ids=["scales_fixed", "scales_learned"])
@pytest.mark.parametrize("narrowed", [1.0, 0.5], ids=["spanning", "clipping"])
def test_steps_follow_straight_through_autograd(granularity, symmetric, scale_rate, narrowed):
    scheme = TensorScheme(dtype("int3"), symmetric=symmetric, granularity=granularity)
    weight, qparams, rounding = make(scheme, narrowed=narrowed)
    gradients = [torch.randn(SHAPE) for _ in range(6)]
    out = torch.empty(SHAPE)
    for gradient in gradients:
        rounding.step(gradient, 0.15, scale_rate, out)
    expected = textbook(weight, scheme, qparams, gradients, 0.15, scale_rate)
    assert not torch.allclose(expected, fake_quantize(weight, scheme, qparams))  # the steps did change something
    torch.testing.assert_close(out, expected)


@settings(max_examples=60)
@given(scheme=schemes, seed=st.integers(0, 99), steps=st.integers(0, 4), momentum=st.sampled_from([0.0, 0.9]))
def test_codes_dequantize_to_exactly_the_values_trained_with(scheme, seed, steps, momentum):
    weight, _, rounding = make(scheme, seed, narrowed=0.8, momentum=momentum)
    out = rounding.values(torch.empty(SHAPE))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rounding.step(torch.randn(SHAPE, generator=generator), 0.2, 0.05, out)
    result = rounding.result()
    assert torch.equal(result.dequantize(), out)
    assert torch.equal(rounding.values(), out)
    assert torch.equal(result.pack().unpack().dequantize(), out)
    low, high = integer_limits(scheme)
    assert int(result.codes.min()) >= low
    assert int(result.codes.max()) <= high
    # A weight goes to one of the two numbers of the grid beside it, or to the end of the grid that clips it.
    widest = float(result.scale.abs().max())
    clipped = (result.codes == low) | (result.codes == high)
    assert bool((((weight - out).abs() <= widest * 1.001) | clipped).all())


@settings(max_examples=30)
@given(scheme=schemes, seed=st.integers(0, 99))
def test_starts_at_nearest_rounding_and_goes_back_there(scheme, seed):
    weight, qparams, rounding = make(scheme, seed)
    nearest = fake_quantize(weight, scheme, qparams)
    assert torch.equal(rounding.values(), nearest)
    rounding.step(torch.randn(SHAPE), 0.5, 0.1, torch.empty(SHAPE))
    rounding.reset()
    assert torch.equal(rounding.values(), nearest)
    assert torch.equal(rounding.scale, qparams.scale)


@pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)
def test_small_parts_give_what_one_part_gives(granularity, monkeypatch):
    scheme = TensorScheme(dtype("int4"), symmetric=False, granularity=granularity)
    gradient, outs = torch.randn(SHAPE), []
    for values in (1 << 20, 20):
        monkeypatch.setattr(autoround_rounding, "_CPU_VALUES", values)
        rounding = make(scheme, narrowed=0.7)[2]
        outs.append(rounding.step(gradient, 0.3, 0.02, torch.empty(SHAPE)))
    assert torch.equal(*outs)


def test_bfloat16_takes_the_rounded_values():
    rounding = make(TensorScheme(dtype("int4"), granularity=PerGroup(8)))[2]
    out = torch.empty(SHAPE, dtype=torch.bfloat16)
    rounding.step(torch.randn(SHAPE, dtype=torch.bfloat16), 0.3, 0.02, out)
    assert torch.equal(out, rounding.values().bfloat16())


def test_momentum_carries_on_where_the_gradient_ends():
    scheme = TensorScheme(dtype("int4"))
    moved = {}
    for momentum in (0.0, 0.9):
        rounding = make(scheme, momentum=momentum)[2]
        out = torch.empty(SHAPE)
        rounding.step(torch.ones(SHAPE), 0.2, 0.0, out)
        first = out.clone()
        rounding.step(torch.zeros(SHAPE), 0.2, 0.0, out)
        moved[momentum] = not torch.equal(first, out)
    assert moved == {0.0: False, 0.9: True}


def test_a_negative_scale_turns_the_direction():
    scheme, weight = TensorScheme(dtype("int4")), torch.tensor([[0.4, 3.0]])
    rounding = LearnedRounding(weight, scheme, QParams(torch.tensor(-1.0)))
    out = rounding.step(torch.tensor([[-1.0, 0.0]]), 0.2, 0.0, torch.empty(1, 2))
    assert out.tolist() == [[1.0, 3.0]]
    assert torch.equal(rounding.result().dequantize(), out)


VALUES = ["nf4", "fp4_e2m1", "fp8_e4m3"]


def textbook_of_values(weight, kind, scale, gradients, rate, scale_rate):
    """Training on a grid of values, one scale in all: places are read off a piecewise linear map."""
    grid = np.asarray(kind.grid, dtype=np.float32)
    offset, factor = np.zeros(SHAPE, np.float32), np.float32(1)

    def numbers():
        exact = weight / (scale * factor)
        far = [2 * grid[0] - grid[1], *grid, 2 * grid[-1] - grid[-2]]  # the row goes on as it ends
        rounded = np.rint(np.interp(exact, far, np.arange(-1, len(grid) + 1)) + offset)
        inside = (rounded >= 0) & (rounded <= len(grid) - 1)
        return grid[np.clip(rounded, 0, len(grid) - 1).astype(int)], exact, inside

    for gradient in gradients:
        value, exact, inside = numbers()
        by_scale = np.sum(gradient * (value - exact * inside))
        offset = np.clip(offset - rate * np.sign(gradient * inside), -0.5, 0.5)
        factor = factor - scale_rate * np.sign(by_scale)
    return numbers()[0] * scale * factor


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("scale_rate", [0.0, 0.03], ids=["scales_fixed", "scales_learned"])
def test_steps_on_a_grid_of_values_follow_the_textbook(name, scale_rate):
    scheme = TensorScheme(dtype(name))
    weight, qparams, rounding = make(scheme)
    gradients = [torch.randn(SHAPE) for _ in range(6)]
    out = torch.empty(SHAPE)
    for gradient in gradients:
        rounding.step(gradient, 0.15, scale_rate, out)
    expected = textbook_of_values(
        weight.numpy(), scheme.dtype, qparams.scale.numpy(), [g.numpy() for g in gradients], 0.15, scale_rate
    )
    assert not torch.allclose(out, fake_quantize(weight, scheme, qparams))
    torch.testing.assert_close(out, torch.from_numpy(expected.astype(np.float32)))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)
def test_codes_of_values_dequantize_to_what_was_trained_with(name, granularity):
    weight, qparams, rounding = make(TensorScheme(dtype(name), granularity=granularity), narrowed=0.8)
    assert torch.equal(rounding.values(), fake_quantize(weight, rounding.scheme, qparams))
    out = torch.empty(SHAPE)
    for _ in range(3):
        rounding.step(torch.randn(SHAPE), 0.2, 0.05, out)
    assert torch.equal(rounding.result().dequantize(), out)
    assert torch.equal(rounding.result().pack().unpack().dequantize(), out)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "mxfp6_e2m3", "mxint8", "mxint4_b16", "nvfp4"])
def test_block_formats_keep_scales_that_can_be_stored(name):
    weight, scheme = torch.randn(6, 72), TensorScheme(dtype(name))
    qparams = qparams_of(weight, scheme)
    rounding, out = LearnedRounding(weight, scheme, qparams), torch.empty(6, 72)
    assert torch.equal(rounding.values(), fake_quantize(weight, scheme, qparams))
    for _ in range(5):
        rounding.step(torch.randn(6, 72), 0.3, 0.1, out)
    assert not torch.equal(out, fake_quantize(weight, scheme, qparams))
    found = rounding.result().pack().unpack()
    assert torch.equal(found.dequantize(), out), "scales in their small type are what was trained with"
    assert torch.equal(found.scale, qparams.scale) == (name != "nvfp4"), "powers of two stay, others are learned"


def test_types_without_scales_are_refused():
    with pytest.raises(ConfigError, match="bf16 has none"):
        LearnedRounding(torch.randn(2, 32), TensorScheme(dtype("bf16")), QParams(torch.tensor(1.0)))


def test_missing_scales_are_refused():
    with pytest.raises(ConfigError, match="needs scales"):
        LearnedRounding(torch.randn(2, 4), TensorScheme(dtype("int4")), QParams(None))
