"""Quantization in operators that a graph can leave this process with, for ``torch.export`` and ONNX.

Integer kernels hold packed weights, which neither can store. In their place stand the codes of a weight with what makes
floats of them, and activations that are rounded to codes and back; runtimes make integer kernels of that again.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.onnx import is_in_onnx_export

_TELLS_APART = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether torch tells its compiler from ``torch.export``: 2.11 says in compiled code that it is exporting, 2.13 does not."""


def is_exporting() -> bool:
    """Whether ``torch.export`` is looking; of torch before 2.13 that is not known with its option ``strict``."""
    return torch.compiler.is_exporting() and (_TELLS_APART or not torch.compiler.is_dynamo_compiling())


def makes_graph() -> bool:
    """Whether torch compiles, exports or traces what is called, rather than only running it."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def is_leaving() -> bool:
    """Whether a graph is being made that other programs will run."""
    # The last question imports modules at every call: it is asked only where a graph is made at all.
    return makes_graph() and (is_exporting() or is_in_onnx_export())


def _operators() -> Any:
    import torch.ao.quantization.fx._decomposed  # registers them, and takes its time

    return torch.ops.quantized_decomposed


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``; what has it already is left as it is, and leaves no cast in a graph."""
    return x if x.dtype == dtype else x.to(dtype)


def rounded(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """``x`` rounded to unsigned 8-bit codes, in float32."""
    x = as_type(x, torch.float32)
    if is_in_onnx_export():
        found: Tensor = _Round.apply(x, scale, zero_point)  # type: ignore[no-untyped-call]
        return found
    grid = (scale, zero_point, 0, 255, torch.uint8)
    ops = _operators()
    back: Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *grid), *grid)
    return back


def dequantized(codes: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int = 0) -> Tensor:
    """Int8 codes (for ONNX also int32) as floats, with one scale or one for each place along ``axis``."""
    scale = scale.reshape(-1).float()
    zeros = torch.zeros_like(scale, dtype=torch.int64) if zero_point is None else zero_point.reshape(-1).long()
    if is_in_onnx_export():
        found: Tensor = _Dequantize.apply(  # type: ignore[no-untyped-call]
            constant(codes), constant(scale), constant(zeros.to(codes.dtype)), axis
        )
        return found
    if scale.numel() == 1:
        scale, zeros = scale.expand(codes.shape[axis]), zeros.expand(codes.shape[axis])
    values: Tensor = _operators().dequantize_per_channel(codes, scale, zeros, axis, -128, 127, torch.int8)
    return values


def constant(tensor: Tensor) -> Tensor:
    """A copy that the tracer of the ONNX exporter takes as it is, and not for something to compute from a buffer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(tensor.detach().cpu().numpy().copy())


class _Round(torch.autograd.Function):
    """QuantizeLinear and DequantizeLinear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, zero_point: int) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)

    @staticmethod
    def symbolic(g: Any, x: Any, scale: float, zero_point: int) -> Any:
        grid = (
            g.op("Constant", value_t=torch.tensor(scale, dtype=torch.float32)),
            g.op("Constant", value_t=torch.tensor(zero_point, dtype=torch.uint8)),
        )
        back = g.op("DequantizeLinear", g.op("QuantizeLinear", x, *grid), *grid)
        back.setType(x.type())
        return back


class _Dequantize(torch.autograd.Function):
    """DequantizeLinear of a constant."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
        shape = [-1 if place == axis else 1 for place in range(codes.dim())]
        return (codes.float() - zero_point.float().reshape(shape)) * scale.reshape(shape)

    @staticmethod
    def symbolic(g: Any, codes: Any, scale: Any, zero_point: Any, axis: int) -> Any:
        single = scale.type().sizes() == [1]
        if single:
            first = g.op("Constant", value_t=torch.tensor(0))
            scale, zero_point = g.op("Gather", scale, first, axis_i=0), g.op("Gather", zero_point, first, axis_i=0)
        floats = g.op("DequantizeLinear", codes, scale, zero_point, **({} if single else {"axis_i": axis}))
        floats.setType(codes.type().with_dtype(torch.float32))
        return floats
