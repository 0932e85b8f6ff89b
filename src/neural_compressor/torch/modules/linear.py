"""Quantized Linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.activation import as_kernels_read, over_own_range, within_codes
from neural_compressor.torch.modules.base import QUANT_MODULES
from neural_compressor.torch.modules.kernels import fbgemm
from neural_compressor.torch.modules.kernels.fp8 import TORCH_TYPES, Fp8Kernel, InputRule, fp8_kernel, is_fp8
from neural_compressor.torch.modules.layer_operator import is_compiled
from neural_compressor.torch.modules.portable import as_type, is_leaving
from neural_compressor.torch.modules.weighted import WeightedModule


@QUANT_MODULES.register("Linear")
class QuantLinear(WeightedModule):
    """Replaces ``nn.Linear``."""

    replaces = nn.Linear
    weight_packed: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        self.weight_shape: tuple[int, int]
        self.out_features, self.in_features = self.weight_shape
        self._fp8: Fp8Kernel | None = None
        self._input_rule: InputRule | None = None

    def _choose_kernel(self, device: str) -> str:
        self._fp8 = fp8_kernel(self.scheme, self.weight_shape, device) if is_fp8(self.scheme) else None
        if self._fp8 is None or self.scheme.activation is None:
            return super()._choose_kernel(device)
        self._input_rule = InputRule.of(self.scheme.activation)
        return self._fp8.name

    def forward(self, input: Tensor) -> Tensor:
        if self._fp8 is not None and (is_compiled() or not is_leaving()):
            return self._eight_bit_floats(self._fp8, input)
        if is_compiled():
            return self._as_operator(input)
        y = self._product(self.turned(input))
        return y if input.is_quantized else as_type(y, input.dtype)

    def _eight_bit_floats(self, kernel: Fp8Kernel, input: Tensor) -> Tensor:
        rows = self.turned(input).reshape(-1, self.in_features)
        if rows.shape[0] == 0:
            return self.empty_outputs([input])[0]
        weight = self.weight_packed.view(TORCH_TYPES[self.weight_scheme.dtype.name])
        assert self._input_rule is not None
        y = kernel.run(rows, weight, self.weight_scale, self.input_scale, self._input_rule)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        y = y.relu() if self.relu else y
        return y.to(input.dtype).reshape(*input.shape[:-1], self.out_features)

    def _product(self, x: Tensor) -> Tensor:
        # TorchScript has no place for the packed weight.
        if self.simulated or is_leaving() or torch._C._get_tracing_state() is not None:
            return self._simulated(x)
        if x.dim() == 1:  # the kernel wants rows
            return self._integer(x.unsqueeze(0)).squeeze(0)
        return self._integer(x)

    def _simulated(self, x: Tensor) -> Tensor:
        inside = self._rounded(x)
        y = F.linear(inside, *self._parameters_as(inside.dtype))
        y = self._as_output(y)
        y = y if x.is_quantized else as_type(y, x.dtype)
        return self._leaving(y.relu() if self.relu else y)

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [inputs[0].new_empty(*inputs[0].shape[:-1], self.out_features)]

    def _integer(self, x: Tensor) -> Tensor:
        scheme, packed = self.scheme.activation, self.prepacked()
        assert scheme is not None
        values = x.dequantize() if x.is_quantized else x.detach().float()
        if self.scheme.mode == "static":
            qparams = self._u8("input")
            y = fbgemm.linear_static(within_codes(values, qparams, scheme), *qparams, packed, self.relu)
        elif scheme.symmetric and values.numel():
            found = over_own_range(values, scheme)
            if found is None:
                return self.empty_outputs([x])[0].fill_(torch.nan)
            y = fbgemm.linear_static(found[0], *found[1], packed, self.relu)
        else:
            # The kernel looks for the range itself, and what it finds beside NaN depends on where that stands.
            if not math.isfinite(float(values.sum())):
                values = as_kernels_read(values, fixed_range=False)
                if bool(values.isnan().any()):
                    return self.empty_outputs([x])[0].fill_(torch.nan)
            y = fbgemm.linear_dynamic(values, packed, self.relu, scheme.reduce_range)
        return y.to(torch.float32 if x.is_quantized else x.dtype)

    def _prepack(self) -> Any:
        return fbgemm.pack_linear(*self._int8_weight(), self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {super().extra_repr()}"
