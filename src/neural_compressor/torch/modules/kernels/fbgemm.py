"""The int8 matrix product of torch's x86 engine (FBGEMM): u8 activations, s8 weights with or without zero-points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_OPS = torch.ops.quantized


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Weights are packed for the engine that is selected at that moment."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def pack_linear(codes: Tensor, scale: Tensor, zero_point: Tensor | None, bias: Tensor | None) -> Any:
    """Int8 weights ``(out, in)``, scale and zero-point for the tensor or for each row, in the kernel's layout."""
    if scale.numel() == 1:
        zero = 0 if zero_point is None else int(zero_point)
        weight = torch._make_per_tensor_quantized_tensor(codes, float(scale), zero)
    else:
        zeros = torch.zeros(len(codes), dtype=torch.int64) if zero_point is None else zero_point.reshape(-1).long()
        weight = torch._make_per_channel_quantized_tensor(codes, scale.reshape(-1).double(), zeros, 0)
    with engine("x86"):
        return _OPS.linear_prepack(weight, bias)


def linear_static(x: Tensor, scale: float, zero_point: int, packed: Any, relu: bool) -> Tensor:
    """Float in, float out; ``x`` is quantized on the way."""
    if relu:
        op = _OPS.linear_with_input_q_dq_qweight_dq_relu_output_fp32
    else:
        op = _OPS.linear_with_input_q_dq_qweight_dq_output_fp32
    y: Tensor = op(x, scale, zero_point, packed)
    return y


def linear_dynamic(x: Tensor, packed: Any, relu: bool, reduce_range: bool) -> Tensor:
    """Float in, float out; ``x`` is quantized asymmetrically over its own range."""
    op = _OPS.linear_relu_dynamic if relu else _OPS.linear_dynamic
    y: Tensor = op(x, packed, reduce_range)
    return y


def linear_quint8(x: Tensor, packed: Any, relu: bool, scale: float, zero_point: int) -> Tensor:
    """Quint8 in, quint8 out in the given qparams."""
    op = _OPS.linear_relu if relu else _OPS.linear
    y: Tensor = op(x, packed, scale, zero_point)
    return y
