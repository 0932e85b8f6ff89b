"""Quantized convolutions; no integer kernel of torch returns transposed ones in float, so these are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.activation import has_fixed_range, over_own_range, within_codes
from neural_compressor.torch.modules.base import QUANT_MODULES
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.kernels import onednn
from neural_compressor.torch.modules.kernels.integer import kernel_pairs
from neural_compressor.torch.modules.kernels.quint8 import U8, codes_of, to_quint8
from neural_compressor.torch.modules.layer_operator import is_compiled
from neural_compressor.torch.modules.portable import as_type, is_leaving
from neural_compressor.torch.modules.weighted import WeightedModule

_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class _Convolution(WeightedModule):
    """What convolutions share with transposed ones; ``dims`` is over how many dimensions they go."""

    dims: int
    groups: int

    @property
    def input_axis(self) -> int:
        return -1 - self.dims

    @property
    def input_channels(self) -> int:
        inside = super().input_channels
        return inside if self.channel_axis else inside * self.groups

    def _inputs_last(self, weight: Tensor) -> Tensor:
        if self.channel_axis or self.groups == 1:
            return super()._inputs_last(weight)
        outside, inside, *kernel = weight.shape
        by_group = weight.reshape(self.groups, outside // self.groups, inside, *kernel)
        return by_group.movedim((0, 2), (-2, -1)).reshape(outside // self.groups, *kernel, self.groups * inside)

    def _from_inputs_last(self, weight: Tensor) -> Tensor:
        if self.channel_axis or self.groups == 1:
            return super()._from_inputs_last(weight)
        by_group = weight.reshape(*weight.shape[:-1], self.groups, -1)
        return by_group.movedim((-2, -1), (0, 2)).reshape(self.weight_shape)

    def _keep_input(self, change: InputChange | None) -> None:
        if change is not None and self.groups > 1 and (change.rotation is not None or change.order is not None):
            raise QuantizationError(
                f"a {self.op_type} of {self.groups} groups cannot mix or order channels of its input"
            )
        super()._keep_input(change)

    def _rounded(self, x: Tensor, name: str = "input") -> Tensor:
        if self.scheme.activation is None or has_fixed_range(self.scheme.activation):
            return super()._rounded(x, name)
        # Groups and blocks lie along the channels, which the convolution sums over.
        channels = -1 - self.dims
        return super()._rounded(x.movedim(channels, -1), name).movedim(-1, channels)


class QuantConv(_Convolution):
    """A convolution over one, two or three dimensions.

    Float outputs are laid out as the float op would lay them out: channels last only for an input that is.
    """

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        self.dims = len(self.weight_shape) - 2
        padding, self.outer_padding = _split_padding(module)
        self.padding_mode = module.padding_mode
        self.groups = module.groups
        self.geometry = onednn.ConvGeometry(module.stride, padding, module.dilation, module.groups)

    def forward(self, input: Tensor) -> Tensor:
        if is_compiled():
            return self._as_operator(input)
        batched, x = input.dim() == self.dims + 2, self.turned(input)
        y = self._convolved(x if batched else x.unsqueeze(0))
        y = y if input.is_quantized else as_type(y, input.dtype)
        return y if batched else y.squeeze(0)

    def _convolved(self, x: Tensor) -> Tensor:
        # An empty batch has nothing to compute, and the integer kernel refuses it.
        in_floats = self.simulated or is_leaving() or x.numel() == 0
        return self._simulated(x) if in_floats else self._integer(x)

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        x, shape = inputs[0], []
        outer = list(self.outer_padding) or [0] * (2 * self.dims)
        for axis in range(self.dims):
            around = 2 * self.geometry.padding[axis] + sum(outer[2 * (self.dims - 1 - axis) :][:2])
            reach = self.geometry.dilation[axis] * (self.weight_shape[2 + axis] - 1) + 1
            shape.append((x.shape[axis - self.dims] + around - reach) // self.geometry.stride[axis] + 1)
        y = x.new_empty(*x.shape[: -self.dims - 1], self.weight_shape[0], *shape)
        layout = _layout(x)
        return [y if layout is None else y.contiguous(memory_format=layout)]

    def pairs(self) -> np.ndarray:
        return kernel_pairs(self.op_type, self.weight_shape)

    def _padded(self, x: Tensor) -> Tensor:
        """``x`` with the padding that a convolution cannot do itself: other modes, or more on one side, or too much."""
        if not any(self.outer_padding):
            return x
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        values = F.pad(x.dequantize() if x.is_quantized else x, self.outer_padding, mode=mode)
        return to_quint8(values, x.q_scale(), x.q_zero_point()) if x.is_quantized else values

    def _simulated(self, x: Tensor) -> Tensor:
        inside = self._padded(self._rounded(x))
        y = _CONVOLVE[self.dims](inside, *self._parameters_as(inside.dtype), *self.geometry.arguments)
        y = y if x.is_quantized else as_type(y, x.dtype)
        return self._leaving(y.relu() if self.relu else y)

    def _integer(self, x: Tensor) -> Tensor:
        scheme = self.scheme.activation
        assert scheme is not None
        if self.scheme.mode == "static":
            qparams = self._u8("input")
        else:
            found = over_own_range(x, scheme)
            if found is None:
                return self.empty_outputs([x])[0].fill_(torch.nan)
            x, qparams = found
        padded = self._padded(x)
        codes = codes_of(to_quint8(within_codes(padded, qparams, scheme), *qparams))
        y = onednn.conv(codes, qparams, self.prepacked(), self.relu)
        return _laid_out_like(x, y).to(torch.float32 if x.is_quantized else x.dtype)

    def _prepack(self) -> Any:
        codes, scale, _ = self._int8_weight()
        qparams: U8 = self._u8("input") if self.scheme.mode == "static" else (1.0, 128)
        return onednn.pack_conv(codes, scale, self.bias, self.geometry, qparams)

    def extra_repr(self) -> str:
        out, inside, *kernel = self.weight_shape
        shape = f"{inside * self.geometry.groups}, {out}, kernel_size={tuple(kernel)}, stride={self.geometry.stride}"
        return f"{shape}, {super().extra_repr()}"


def _laid_out_like(x: Tensor, y: Tensor) -> Tensor:
    """The kernel returns channels last; model code that calls ``view`` relies on the layout the float op gives."""
    return y if _layout(x) is not None else y.contiguous()


def _layout(x: Tensor) -> torch.memory_format | None:
    """Channels last, where ``x`` is laid out so."""
    layout = _CHANNELS_LAST.get(x.dim())
    keeps = layout and not x.is_quantized and not x.is_contiguous() and x.is_contiguous(memory_format=layout)
    return layout if keeps else None


def _split_padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> tuple[tuple[int, ...], Sequence[int]]:
    """``(padding of the convolution, padding before it as F.pad takes it)``.

    The integer kernel is wrong, now and then, where its window can lie in the padding altogether.
    """
    none: tuple[int, ...] = (0,) * len(module.kernel_size)
    sides: list[tuple[int, int]]
    reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    if module.padding == "same":
        sides = [(total // 2, total - total // 2) for total in reach]
    elif module.padding == "valid":
        sides = [(0, 0) for _ in none]
    else:
        sides = [(p, p) for p in module.padding]  # type: ignore[misc]
    inside = all(left == right <= most for (left, right), most in zip(sides, reach, strict=True))
    if module.padding_mode == "zeros" and inside:
        return tuple(left for left, _ in sides), ()
    return none, [p for side in reversed(sides) for p in side]


@QUANT_MODULES.register("Conv1d")
class QuantConv1d(QuantConv):
    """Replaces ``nn.Conv1d``."""

    replaces = nn.Conv1d


@QUANT_MODULES.register("Conv2d")
class QuantConv2d(QuantConv):
    """Replaces ``nn.Conv2d``."""

    replaces = nn.Conv2d


@QUANT_MODULES.register("Conv3d")
class QuantConv3d(QuantConv):
    """Replaces ``nn.Conv3d``."""

    replaces = nn.Conv3d


class QuantConvTranspose(_Convolution):
    """A transposed convolution; the weight of the float module is ``(in, out / groups, *kernel)``."""

    channel_axis = 1

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
        self.dims = len(module.kernel_size)
        self.stride: tuple[int, ...] = module.stride
        self.padding: tuple[int, ...] = tuple(int(p) for p in module.padding)
        self.output_padding: tuple[int, ...] = module.output_padding
        self.dilation: tuple[int, ...] = module.dilation
        self.groups = module.groups

    @property
    def matrix_shape(self) -> tuple[int, int]:
        inside, outside, *kernel = self.weight_shape
        return outside * self.groups, inside // self.groups * math.prod(kernel)

    def to_matrix(self, weight: Tensor) -> Tensor:
        inside, outside, *kernel = self.weight_shape
        by_group = weight.reshape(self.groups, inside // self.groups, outside, *kernel)
        return by_group.transpose(1, 2).reshape(self.matrix_shape)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        inside, outside, *kernel = self.weight_shape
        by_group = matrix.reshape(self.groups, outside, inside // self.groups, *kernel)
        return by_group.transpose(1, 2).reshape(self.weight_shape)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        inside = self._rounded(self.turned(input))
        weight, bias = self._parameters_as(inside.dtype)
        extra = self.output_padding if output_size is None else self._padding_for(input, output_size)
        y = _TRANSPOSED[self.dims](inside, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)
        y = y if input.is_quantized else y.to(input.dtype)
        return y.relu() if self.relu else y

    def _padding_for(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that makes the result ``output_size`` large."""
        wanted = tuple(output_size)[-self.dims :]
        kernel, padding = self.weight_shape[2:], []
        for axis, size in enumerate(wanted):
            smallest = (
                (x.shape[axis - self.dims] - 1) * self.stride[axis]
                - 2 * self.padding[axis]
                + self.dilation[axis] * (kernel[axis] - 1)
                + 1
            )
            if not smallest <= size < smallest + max(self.stride[axis], self.dilation[axis]):
                raise QuantizationError(
                    f"{self.op_type} makes {smallest} to {smallest + self.stride[axis] - 1} values along "
                    f"dimension {axis} of this input, not {size}"
                )
            padding.append(size - smallest)
        return tuple(padding)

    def extra_repr(self) -> str:
        inside, outside, *kernel = self.weight_shape
        shape = f"{inside}, {outside * self.groups}, kernel_size={tuple(kernel)}, stride={self.stride}"
        return f"{shape}, {super().extra_repr()}"


@QUANT_MODULES.register("ConvTranspose1d")
class QuantConvTranspose1d(QuantConvTranspose):
    """Replaces ``nn.ConvTranspose1d``."""

    replaces = nn.ConvTranspose1d


@QUANT_MODULES.register("ConvTranspose2d")
class QuantConvTranspose2d(QuantConvTranspose):
    """Replaces ``nn.ConvTranspose2d``."""

    replaces = nn.ConvTranspose2d


@QUANT_MODULES.register("ConvTranspose3d")
class QuantConvTranspose3d(QuantConvTranspose):
    """Replaces ``nn.ConvTranspose3d``."""

    replaces = nn.ConvTranspose3d
