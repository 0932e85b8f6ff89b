"""Convolutions from quint8 tensors to quint8 tensors, one alone or with a residual added, for ops that hand codes on.

``quantized::conv2d`` costs less a call than ``onednn::qconv2d_pointwise``, which alone adds a residual before it rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_compressor.torch.nn.activation import U8
from neural_compressor.torch.nn.fbgemm import engine
from neural_compressor.torch.nn.onednn import ConvGeometry, PackedConv, conv
from neural_compressor.torch.nn.quint8 import codes_of, to_quint8, with_qparams

Codes = Callable[[Tensor], Tensor]


def conv2d(weight: Tensor, scale: Tensor, bias: Tensor | None, geometry: ConvGeometry, relu: bool, output: U8) -> Codes:
    """A two-dimensional convolution with int8 ``weight`` (out, in / groups, *kernel), one scale or one an output channel."""
    if scale.numel() == 1:
        quantized = torch._make_per_tensor_quantized_tensor(weight, float(scale), 0)
    else:
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        quantized = torch._make_per_channel_quantized_tensor(weight, scale.reshape(-1).double(), zeros, 0)
    with engine("onednn"):
        stride, padding, dilation, groups = geometry.arguments
        packed = torch.ops.quantized.conv2d_prepack(quantized, bias, stride, padding, dilation, groups)
    op = torch.ops.quantized.conv2d_relu.new if relu else torch.ops.quantized.conv2d.new
    out_scale, out_zero = output

    def convolved(x: Tensor) -> Tensor:
        y: Tensor = op(x, packed, out_scale, out_zero)
        return y

    return convolved


def conv_nd(packed: PackedConv, qparams: U8, relu: bool, output: U8) -> Codes:
    """A convolution over one or three dimensions."""

    def convolved(x: Tensor) -> Tensor:
        return with_qparams(conv(codes_of(x), qparams, packed, relu, output), *output)

    return convolved


def conv_to_float(packed: PackedConv, qparams: U8, relu: bool) -> Codes:
    """A convolution whose float result is laid out channels last."""

    def convolved(x: Tensor) -> Tensor:
        return conv(codes_of(x), qparams, packed, relu)

    return convolved


def conv2d_add(
    packed: PackedConv, kernel: Sequence[int], qparams: U8, residual: U8, relu: bool, output: U8
) -> Callable[[Tensor, Tensor], Tensor]:
    """A two-dimensional convolution whose result is added to a residual, in whose memory the sum is written."""
    op = torch.ops.onednn.qconv2d_pointwise.binary
    before = (*qparams, packed.weight, packed.scale, packed.zero_point)
    (s0, s1), (p0, p1), (d0, d1), groups = packed.geometry.arguments
    channels, unary = len(packed.scale), "relu" if relu else "none"
    after: tuple[Any, ...] = (packed.bias, (s0, s1), (p0, p1), (d0, d1), groups)
    after = (*after, *output, torch.uint8, *residual, "sum", 1.0, unary, [], "")
    reach0, reach1 = 2 * p0 - d0 * (kernel[0] - 1) - 1, 2 * p1 - d1 * (kernel[1] - 1) - 1
    channels_last = torch.channels_last

    def added(x: Tensor, accumulated: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        # The kernel writes as far as the convolution reaches, whatever the size of the residual.
        if accumulated.shape != (batch, channels, (height + reach0) // s0 + 1, (width + reach1) // s1 + 1):
            total = conv(codes_of(x), qparams, packed, relu=False) + accumulated.dequantize()
            return to_quint8(total.relu_() if relu else total, *output)
        codes = codes_of(accumulated.contiguous(memory_format=channels_last))
        return with_qparams(op(codes_of(x), *before, codes, *after), *output)

    return added
