"""How the input of an op is quantized: over a calibrated range, or over the range of each input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neural_compressor.dtypes import BlockType
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PerGroup, QParams, TensorScheme, choose_qparams, fake_quantize

Range = tuple[Any, Any]
U8 = tuple[float, int]
"""Scale and zero-point of unsigned 8-bit codes."""


def calibrated_qparams(bounds: Range, scheme: TensorScheme, what: str) -> QParams:
    """Scale and zero-point for values between the calibrated bounds."""
    low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in bounds)
    if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise QuantizationError(f"the calibrated range of {what} is {bounds}: it must be finite")
    return choose_qparams(low, high, scheme)


def has_fixed_range(scheme: TensorScheme | None) -> bool:
    """Whether calibration can fix the scales: blocks and groups take theirs from each input."""
    if scheme is None or scheme.is_float or isinstance(scheme.dtype, BlockType):
        return False
    return not isinstance(scheme.granularity, PerGroup)


def simulate(x: Tensor, scheme: TensorScheme, qparams: QParams | None) -> Tensor:
    """``x`` rounded to what the scheme can represent, in float32; without ``qparams`` over its own range."""
    if x.is_quantized:
        return x.dequantize()
    rounded: Tensor = fake_quantize(x, scheme, qparams) if x.numel() else x.float()
    return rounded


def as_u8(qparams: QParams, scheme: TensorScheme) -> U8:
    """Signed codes are unsigned codes less 128 (64 on a reduced range): the same grid with another zero-point."""
    shift = 0 if not scheme.dtype.signed else 64 if scheme.reduce_range else 128
    assert qparams.scale is not None
    zero = 0 if qparams.zero_point is None else int(qparams.zero_point)
    return float(qparams.scale), zero + shift


def input_u8(x: Tensor, scheme: TensorScheme) -> U8:
    """Scale and zero-point of unsigned codes for the range of ``x`` itself."""
    low, high = torch.aminmax(x.detach())
    return as_u8(choose_qparams(low.float(), high.float(), scheme), scheme)


def within_codes(x: Tensor, qparams: U8, scheme: TensorScheme) -> Tensor:
    """``x`` clipped to what codes of a reduced range reach: the kernels themselves clip at code 255."""
    if not scheme.reduce_range or x.is_quantized:
        return x
    scale, zero = qparams
    return x.clamp(-zero * scale, (127 - zero) * scale)
