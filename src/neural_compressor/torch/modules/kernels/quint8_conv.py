"""Convolutions of quint8 tensors, for ops that hand codes on.

``quantized::conv2d`` costs less a call than ``onednn::qconv2d_pointwise``, and returns codes only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_compressor.torch.modules.activation import U8
from neural_compressor.torch.modules.kernels.fbgemm import engine
from neural_compressor.torch.modules.kernels.onednn import ConvGeometry, PackedConv, conv
from neural_compressor.torch.modules.kernels.quint8 import codes_of, with_qparams

Codes = Callable[[Tensor], Tensor]


def conv2d(
    weight: Callable[[], tuple[Tensor, Tensor]], bias: Tensor | None, geometry: ConvGeometry, relu: bool, output: U8
) -> Codes:
    """A two-dimensional convolution; ``weight`` gives int8 codes (out, in / groups, *kernel) and scales.

    A packed weight remembers how to compute the first shape it is called with; another one costs it some 30 us a call. So it
    is packed anew for an input of half the size or less, of which that is much.
    """

    def pack() -> Any:
        codes, scale = weight()
        if scale.numel() == 1:
            quantized = torch._make_per_tensor_quantized_tensor(codes, float(scale), 0)
        else:
            zeros = torch.zeros(len(codes), dtype=torch.int64)
            quantized = torch._make_per_channel_quantized_tensor(codes, scale.reshape(-1).double(), zeros, 0)
        with engine("onednn"):
            return torch.ops.quantized.conv2d_prepack(quantized, bias, *geometry.arguments)

    packed, least = pack(), sys.maxsize
    op = torch.ops.quantized.conv2d_relu.new if relu else torch.ops.quantized.conv2d.new
    out_scale, out_zero = output

    def convolved(x: Tensor) -> Tensor:
        nonlocal packed, least
        count = x.numel()
        if count * 2 <= least:
            packed, least = packed if least == sys.maxsize else pack(), count
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
    if len(packed.geometry.stride) != 2:
        return lambda x: conv(codes_of(x), qparams, packed, relu)
    op = torch.ops.onednn.qconv2d_pointwise.default
    weight = (*qparams, packed.weight, packed.scale, packed.zero_point, packed.bias)
    output: tuple[Any, ...] = (1.0, 0, torch.float32, "relu" if relu else "none", [], "")
    arguments = (*weight, *packed.geometry.arguments, *output)

    def convolved(x: Tensor) -> Tensor:
        y: Tensor = op(codes_of(x), *arguments)
        return y

    return convolved
