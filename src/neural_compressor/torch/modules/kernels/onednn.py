"""The int8 convolutions of oneDNN: u8 activations, s8 weights without zero-points, float32 or u8 out.

Between ops that hand codes on ``quantized::conv2d`` runs: it costs less a call than ``onednn::qconv2d_pointwise``, and
returns codes only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neural_compressor.torch.modules.kernels.fbgemm import engine
from neural_compressor.torch.modules.kernels.quint8 import U8, codes_of, with_qparams


@dataclass(frozen=True)
class ConvGeometry:
    """How the window moves over ``len(stride)`` spatial dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def arguments(self) -> tuple[Sequence[int], Sequence[int], Sequence[int], int]:
        return self.stride, self.padding, self.dilation, self.groups


@dataclass(frozen=True)
class PackedConv:
    """A convolution's weight in the kernel's blocked layout, with what the kernel asks for beside it."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    bias: Tensor | None
    geometry: ConvGeometry


def pack_conv(
    codes: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    geometry: ConvGeometry,
    qparams: tuple[float, int],
    shape: Sequence[int] | None = None,
) -> PackedConv:
    """Weights ``(out, in / groups, *kernel)`` in int8, one scale or one an output channel; ``qparams`` of the input.

    For an input of another size than ``shape`` the kernel may want another layout, and reorders the weight at each call.
    """
    scale = scale.reshape(-1).float()
    weight = torch.ops.onednn.qconv_prepack(codes, scale, *qparams, *geometry.arguments, shape)
    return PackedConv(weight, scale, torch.zeros(1, dtype=torch.int32), bias, geometry)


def conv(
    codes: Tensor, qparams: tuple[float, int], packed: PackedConv, relu: bool, output: tuple[float, int] | None = None
) -> Tensor:
    """Convolve u8 ``codes``; the result is float32, or u8 in the qparams ``output``. It is laid out channels last."""
    dims = len(packed.geometry.stride)
    op = getattr(torch.ops.onednn, f"qconv{dims}d_pointwise").default
    fused = relu and dims < 3  # the 3-D kernel takes no post-op
    out_scale, out_zero = output or (1.0, 0)
    y: Tensor = op(
        codes,
        *qparams,
        packed.weight,
        packed.scale,
        packed.zero_point,
        packed.bias,
        *packed.geometry.arguments,
        out_scale,
        out_zero,
        torch.float32 if output is None else torch.uint8,
        "relu" if fused else "none",
        [],
        "",
    )
    if relu and not fused:
        return y.clamp_(min=0 if output is None else out_zero)
    return y


Convolution = Callable[[Tensor], Tensor]
"""From a quint8 tensor to a quint8 or float one."""


def conv2d(
    weight: Callable[[], tuple[Tensor, Tensor]], bias: Tensor | None, geometry: ConvGeometry, relu: bool, output: U8
) -> Convolution:
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


def conv_nd(packed: PackedConv, qparams: U8, relu: bool, output: U8) -> Convolution:
    """A convolution over one or three dimensions."""

    def convolved(x: Tensor) -> Tensor:
        return with_qparams(conv(codes_of(x), qparams, packed, relu, output), *output)

    return convolved


def conv_to_float(packed: PackedConv, qparams: U8, relu: bool) -> Convolution:
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
