"""Arithmetic as modules, so that it can be named, calibrated and quantized like any other op of a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
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

    #: Whether it stands for a product that a forward computes by a function.
    by_function = False

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a, b)


class ScaledDotProductAttention(nn.Module):
    """The function of torch of that name as two products, ``qk`` and ``av``, with a softmax between them.

    >>> q, k, v = torch.randn(3, 2, 5, 8).unbind()
    >>> torch.allclose(ScaledDotProductAttention()(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-6)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.av = MatMul(), MatMul()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """What the function gives; rows that attend to nothing are zero."""
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = self.qk(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = scores.softmax(-1)
        if attn_mask is not None:
            weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        product: Tensor = self.av(F.dropout(weights, dropout_p) if dropout_p else weights, value)
        return product
