"""The int8 convolutions of oneDNN: u8 activations, s8 weights without zero-points, float32 or u8 out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
