"""RMS normalisation of one row in five operators in place of eight and more, with the same bits.

A language model normalises twice in each of its blocks, and for one row all that its six to ten operators cost is their
call. Whether a module is such a normalisation is not taken from its name but tried: on rows of several magnitudes one of the
formulas that are in use must give the bits that the module gives, or the module runs as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neural_compressor.torch.modules.object_forward import ObjectForward
from neural_compressor.torch.modules.portable import makes_graph

_MAGNITUDES = (1.0, 1e-3, 1e-5, 30.0)
"""Of the rows that are tried: with small ones the number that is added to the mean shows."""

Formula = Callable[[Tensor, float, Tensor], Tensor]
"""The output for a row, the reciprocal of its root mean square, and the weight."""


def _plainly_scaled(x: Tensor, factor: float, weight: Tensor) -> Tensor:
    return weight * (x * factor)


def _scaled_in_type(x: Tensor, factor: float, weight: Tensor) -> Tensor:
    return weight * (x.float() * factor).to(x.dtype)


def _scaled_in_single(x: Tensor, factor: float, weight: Tensor) -> Tensor:
    return (x.float() * factor * weight.float()).to(x.dtype)


def _one_plus(x: Tensor, factor: float, weight: Tensor) -> Tensor:
    return (x.float() * factor * (1.0 + weight.float())).to(x.dtype)


_FORMULAS: tuple[Formula, ...] = (_plainly_scaled, _scaled_in_type, _scaled_in_single, _one_plus)


class NormForward(ObjectForward):
    """The attribute ``forward`` of a module that may be an RMS normalisation; one that is none gets rid of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._formula: Formula | None = None
        self._eps = np.float32(0)
        self._dtype: torch.dtype | None = None
        self._known: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether a row is normalised by a formula."""
        return self._formula is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if makes_graph() or kwargs or len(args) != 1:
            return self.own(*args, **kwargs)
        (x,) = args
        weight = next(iter(self.module._parameters.values()))
        if (
            type(x) is not Tensor
            or weight is None
            or not x.shape[-1] == x.numel() == weight.numel()
            or x.dtype is not weight.dtype
            or not x.is_cpu
            or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
            or torch._C._len_torch_function_stack()  # who watches the operators of a module wants to see its own
            or torch._C._len_torch_dispatch_stack()
        ):
            return self.own(x)
        if self._dtype is not x.dtype or not self._is_known():
            self._find(x, weight)
        return self.own(x) if self._formula is None else self._formula(x, _factor(x, self._eps), weight)

    def _is_known(self) -> bool:
        try:
            return self._known == vars(self.module)
        except (RuntimeError, ValueError):  # a tensor or an array became another
            return False

    def _find(self, x: Tensor, weight: Tensor) -> None:
        """Learn what the module computes, with weights of which no two are the same."""
        self._formula, self._dtype, self._known = None, x.dtype, dict(vars(self.module))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(len(_MAGNITUDES) + 1, len(weight), generator=generator, dtype=torch.float32, device="cpu")
        varied = nn.Parameter(noise[0].to(x.dtype), requires_grad=False)
        rows = [(row * size).to(x.dtype).reshape(x.shape) for row, size in zip(noise[1:], _MAGNITUDES, strict=True)]
        module = copy.copy(self.module)
        module._parameters = dict.fromkeys(module._parameters, varied)
        expected = [type(module).forward(module, row) for row in rows]
        for formula in _FORMULAS:
            for eps in self._epsilons(x.dtype):
                found = (formula(row, _factor(row, eps), varied) for row in rows)
                if all(_same(a, b) for a, b in zip(expected, found, strict=True)):
                    self._formula, self._eps = formula, eps
                    return
        self.reason = "it is no RMS normalisation"
        self.remove()

    def _epsilons(self, dtype: torch.dtype) -> Iterator[np.float32]:
        # Without one, a row of zeros would be divided by zero: such modules are rare, and left alone.
        numbers = [value for value in vars(self.module).values() if type(value) is float]
        yield from (np.float32(number) for number in (*numbers, torch.finfo(dtype).eps) if np.float32(number) > 0)


_ONE = np.float32(1)


def _factor(x: Tensor, eps: np.float32) -> float:
    """One by the root mean square, rounded step by step as operators on float32 do."""
    single = x if x.dtype is torch.float32 else x.float()
    mean = np.float32(torch.mul(single, single).sum().item()) / np.float32(x.numel())
    return float(_ONE / np.sqrt(mean + eps))


def _same(expected: Any, found: Tensor) -> bool:
    fits = type(expected) is Tensor and expected.dtype == found.dtype and expected.shape == found.shape
    return fits and torch.equal(expected, found)


def may_be_norm(module: nn.Module) -> bool:
    """Whether a module has one vector of weights and nothing else."""
    parameters = list(module._parameters.values())
    if module._modules or any(buffer is not None for buffer in module._buffers.values()):
        return False
    return len(parameters) == 1 and parameters[0] is not None and parameters[0].dim() == 1
