"""Modules computed in bf16 or fp16."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.base import QuantModule, finite
from neural_compressor.torch.modules.weighted import FLOATS


class HalfModule(QuantModule):
    """Any module with its weights in bf16 or fp16: inputs are cast to it, outputs back to the type of the input."""

    inputs = ()
    output_type = "float_dtype"

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        if scheme.precision not in ("bf16", "fp16"):
            raise QuantizationError(f"half precision is bf16 or fp16, not {scheme.precision}")
        self.op_type = type(module).__name__
        self.dtype = FLOATS[scheme.precision]
        first = next(module.parameters(), None)
        self.float_dtype = torch.float32 if first is None else first.dtype

    def _quantize(self, module: nn.Module) -> None:
        inner = copy.deepcopy(module).to(self.dtype)
        for name, tensor in inner.state_dict().items():
            if tensor.is_floating_point():
                finite(tensor, f"{name} as {self.scheme.precision}")
        self.module = inner.requires_grad_(False)

    def _restore(self, module: nn.Module, state: Mapping[str, Tensor]) -> None:
        inner = copy.deepcopy(module).to(self.dtype)
        given = {name.removeprefix("module."): tensor for name, tensor in state.items()}
        wrong = sorted(name for name, t in given.items() if t.is_floating_point() and t.dtype != self.dtype)
        if wrong:
            raise FormatError(f"the stored tensors {wrong} of a {self.op_type} are not {self.scheme.precision}")
        try:
            inner.load_state_dict(given, assign=True)
        except RuntimeError as error:
            raise FormatError(f"the stored tensors do not make a {self.op_type}: {error}") from error
        self.module = inner.requires_grad_(False)

    def _settle(self) -> None:
        self.kernel = self.scheme.precision

    def dequantized_weight(self) -> Tensor | None:
        weight = self.weight
        return weight.detach().float() if isinstance(weight, Tensor) else None

    @property
    def weight(self) -> Tensor | None:
        """The weight in the type that the model computes in, for model code that reads ``layer.weight``."""
        return self._in_float("weight")

    @property
    def bias(self) -> Tensor | None:
        """The bias in that type, where the module has one."""
        return self._in_float("bias")

    def _in_float(self, name: str) -> Tensor | None:
        stored = getattr(self.module, name, None)
        return stored.to(self.float_dtype) if isinstance(stored, Tensor) else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        seen: list[torch.dtype] = []

        def lowered(x: Tensor) -> Tensor:
            x = x.dequantize() if x.is_quantized else x
            if not x.is_floating_point():
                return x
            seen.append(x.dtype)
            return x.to(self.dtype)

        lower_args, lower_kwargs = _each_tensor((args, kwargs), lowered)
        y = self.module(*lower_args, **lower_kwargs)
        y = y.relu() if self.relu else y
        back = seen[0] if seen else self.float_dtype
        return _each_tensor(y, lambda t: t.to(back) if t.is_floating_point() else t)


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor in it changed."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=change(leaf.data))
        return change(leaf) if isinstance(leaf, Tensor) else leaf

    return tree_map(changed, value)
