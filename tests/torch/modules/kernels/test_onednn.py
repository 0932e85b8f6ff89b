"""Convolutions of quint8 tensors against float64 arithmetic on the same codes."""

import pytest
import torch
import torch.nn.functional as F

from neural_compressor.torch.modules.kernels.onednn import ConvGeometry, conv2d, conv_to_float, pack_conv
from neural_compressor.torch.modules.kernels.quint8 import to_quint8

IN, OUT = (0.02, 100), (0.05, 120)


def codes_of(values, scale, zero_point):
    return torch.clamp(torch.round(values.double() / scale) + zero_point, 0, 255)


@pytest.fixture(params=[(3, 1, 1), (3, 2, 1), (1, 1, 1), (3, 1, 8)], ids=["3x3", "strided", "1x1", "depthwise"])
def case(request):
    size, stride, groups = request.param
    torch.manual_seed(0)
    # 7 bits, so that kernels without VNNI are exact too.
    weight = torch.randint(-63, 64, (8, 8 // groups, size, size), dtype=torch.int8)
    scale, bias = torch.rand(8) / 500 + 1e-3, torch.randn(8)
    geometry = ConvGeometry((stride, stride), (size // 2, size // 2), (1, 1), groups)
    x = to_quint8(torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last), *IN)
    exact = F.conv2d(
        x.dequantize().double(), weight * scale.double().reshape(-1, 1, 1, 1), bias.double(), *geometry.arguments
    )
    return x, weight, scale, bias, geometry, exact


@pytest.mark.parametrize("relu", [False, True])
def test_codes_in_codes_out(case, relu):
    x, weight, scale, bias, geometry, exact = case
    y = conv2d(lambda: (weight, scale), bias, geometry, relu, OUT)(x)
    assert (y.q_scale(), y.q_zero_point()) == OUT
    wanted = codes_of(exact.relu() if relu else exact, *OUT)
    assert (y.int_repr() - wanted).abs().max() <= 1
    assert (y.int_repr() != wanted).double().mean() < 0.01  # ties only


def test_codes_in_floats_out(case):
    x, weight, scale, bias, geometry, exact = case
    packed = pack_conv(weight, scale, bias, geometry, IN, x.shape)
    torch.testing.assert_close(conv_to_float(packed, IN, relu=False)(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_inputs_of_other_sizes_give_the_same(case):
    x, weight, scale, bias, geometry, _ = case
    run = conv2d(lambda: (weight, scale), bias, geometry, False, OUT)
    whole = run(x)
    assert torch.equal(run(x[:1]).int_repr(), whole[:1].int_repr())
    assert torch.equal(run(x).int_repr(), whole.int_repr())
