"""Arithmetic as modules, so that it can be named, calibrated and quantized like any other op of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Add(nn.Module):
    """``a + b``; one of them may be a plain number, which is not quantized.

    >>> Add()(torch.ones(2), torch.ones(2)).tolist()
    [2.0, 2.0]
    """

    def forward(self, a: Any, b: Any) -> Tensor:
        total: Tensor = a + b
        return total


class Mul(nn.Module):
    """``a * b`` element by element; one of them may be a plain number, which is not quantized.

    >>> Mul()(torch.ones(2), 3.0).tolist()
    [3.0, 3.0]
    """

    def forward(self, a: Any, b: Any) -> Tensor:
        product: Tensor = a * b
        return product


class MatMul(nn.Module):
    """``torch.matmul(a, b)``.

    >>> MatMul()(torch.ones(1, 2), torch.ones(2, 1)).tolist()
    [[2.0]]
    """

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a, b)
