"""Quantized transposed convolutions; no integer kernel of torch returns them in float, so they are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.activation import has_fixed_range
from neural_compressor.torch.modules.base import QUANT_MODULES
from neural_compressor.torch.modules.weighted import WeightedModule

_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class QuantConvTranspose(WeightedModule):
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

    def _to_matrix(self, weight: Tensor) -> Tensor:
        inside, outside, *kernel = self.weight_shape
        by_group = weight.reshape(self.groups, inside // self.groups, outside, *kernel)
        return by_group.transpose(1, 2).reshape(self.matrix_shape)

    def _from_matrix(self, matrix: Tensor) -> Tensor:
        inside, outside, *kernel = self.weight_shape
        by_group = matrix.reshape(self.groups, outside, inside // self.groups, *kernel)
        return by_group.transpose(1, 2).reshape(self.weight_shape)

    def _rounded(self, x: Tensor, name: str = "input") -> Tensor:
        if self.scheme.activation is None or has_fixed_range(self.scheme.activation):
            return super()._rounded(x, name)
        axis = -1 - self.dims
        return super()._rounded(x.movedim(axis, -1), name).movedim(-1, axis)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        inside = self._rounded(input)
        weight, bias = self._parameters_as(inside.dtype)
        extra = self.output_padding if output_size is None else self._padding_for(input, output_size)
        y = _CONVOLVE[self.dims](inside, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)
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
