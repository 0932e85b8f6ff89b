"""Arithmetic as modules, so that it can be named, calibrated and quantized like any other op of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Operand = Tensor | float
"""A tensor or a plain number; only tensors are quantized."""


class Add(nn.Module):
    """``a + b``.

    >>> Add()(torch.ones(2), torch.ones(2)).tolist()
    [2.0, 2.0]
    """

    def forward(self, a: Tensor, b: Operand) -> Tensor:
        return a + b


class Mul(nn.Module):
    """``a * b``, element by element.

    >>> Mul()(torch.ones(2), 3.0).tolist()
    [3.0, 3.0]
    """

    def forward(self, a: Tensor, b: Operand) -> Tensor:
        return a * b


class MatMul(nn.Module):
    """``torch.matmul(a, b)``.

    >>> MatMul()(torch.ones(1, 2), torch.ones(2, 1)).tolist()
    [[2.0]]
    """

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a, b)
