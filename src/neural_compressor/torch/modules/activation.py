"""Quantization of the input of an op, over a calibrated range or over the range of each input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PerChannel, PerTensor, QParams, TensorScheme, choose_qparams
from neural_compressor.schemes.affine import integer_limits, qparams_over
from neural_compressor.schemes.block import tensor_scale_over
from neural_compressor.schemes.block_rounding import round_blocks, round_in_arrays
from neural_compressor.schemes.quantize import round_values
from neural_compressor.schemes.ranges import scale_granularity, value_range
from neural_compressor.torch.modules.kernels import block_triton as _block_triton  # noqa: F401  registers itself
from neural_compressor.torch.modules.kernels.quint8 import U8
from neural_compressor.torch.modules.portable import as_type, is_leaving

Range = tuple[Any, Any]


def calibrated_qparams(bounds: Range, scheme: TensorScheme, what: str) -> QParams:
    """Scale and zero-point for values between the calibrated bounds; of a block format the scale of the whole tensor."""
    low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in bounds)
    if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise QuantizationError(f"the calibrated range of {what} is {bounds}: it must be finite")
    kind = scheme.dtype
    if kind.has_tensor_scale and kind.scale_type is not None:
        return QParams(tensor_scale_over(torch.maximum(low.abs(), high.abs()).max(), kind, kind.scale_type))
    return choose_qparams(low, high, scheme)


def has_fixed_range(scheme: TensorScheme | None) -> bool:
    """Whether calibration fixes a scale, of a tensor or channel: tokens, blocks and groups take theirs from each input."""
    if scheme is None or scheme.is_float:
        return False
    return scheme.dtype.has_tensor_scale or isinstance(scale_granularity(scheme), (PerTensor, PerChannel))


def simulate(x: Tensor, scheme: TensorScheme, qparams: QParams | None) -> Tensor:
    """``x`` rounded to what the scheme can represent, in float32; without ``qparams`` over its own range."""
    if x.is_quantized:
        return x.dequantize()
    x = as_type(x.detach(), torch.float32)
    if not x.numel():
        return x
    if scheme.dtype.scale_type is not None:
        whole = None if qparams is None else qparams.scale
        in_blocks: Tensor = (round_in_arrays if is_leaving() else round_blocks)(x, scheme, whole)
        return in_blocks
    part = scale_granularity(scheme)
    as_kernels_do = scheme.dtype.is_integer and (qparams is not None or isinstance(part, PerTensor))
    if as_kernels_do and not is_leaving():  # else there are no values yet to look at
        x = as_kernels_read(x, fixed_range=qparams is not None)
    if qparams is None:
        low, high = value_range(x, part)
        qparams = qparams_over(low, high, scheme)
        if not as_kernels_do and not is_leaving():
            qparams = _without_endless_parts(qparams, low, high)
    rounded: Tensor = round_values(x, scheme, qparams)
    return rounded


def _without_endless_parts(qparams: QParams, low: Tensor, high: Tensor) -> QParams:
    """Scales that make a token, group or tensor with NaN or infinity in it NaN, and leave the others as they are."""
    if qparams.scale is None:  # 16-bit floats
        return qparams
    return replace(qparams, scale=torch.where(torch.isfinite(low) & torch.isfinite(high), qparams.scale, torch.nan))


def as_kernels_read(x: Tensor, fixed_range: bool) -> Tensor:
    """``x`` with finite values in place of those that are not, as integer kernels read them without being told to.

    NaN is the largest code there is, and infinities are the outermost. Over a range of its own, which an infinity makes
    endless, everything is NaN.
    """
    low, high = torch.aminmax(x)
    if bool(torch.isfinite(low + high)):
        return x
    if not fixed_range:
        x = x.nan_to_num(nan=float(x.nan_to_num(nan=-torch.inf).max()), posinf=torch.inf, neginf=-torch.inf)
        return x if bool(torch.isfinite(x).all()) else torch.full_like(x, torch.nan)
    return x.nan_to_num(nan=torch.finfo(x.dtype).max)


def as_u8(qparams: QParams, scheme: TensorScheme) -> U8:
    """Signed codes are unsigned codes less 128 (64 on a reduced range): the same grid with another zero-point."""
    shift = -integer_limits(scheme)[0]
    assert qparams.scale is not None
    zero = 0 if qparams.zero_point is None else int(qparams.zero_point)
    return float(qparams.scale), zero + shift


def over_own_range(x: Tensor, scheme: TensorScheme) -> tuple[Tensor, U8] | None:
    """``x`` as kernels read it, with scale and zero-point of unsigned codes for its range; None where that is endless."""
    low, high = torch.aminmax(x.detach())
    if not bool(torch.isfinite(low + high)):
        x = as_kernels_read(x.detach(), fixed_range=False)
        low, high = torch.aminmax(x)
        if bool(torch.isnan(low)):
            return None
    return x, as_u8(qparams_over(low.float(), high.float(), scheme), scheme)


def within_codes(x: Tensor, qparams: U8, scheme: TensorScheme) -> Tensor:
    """``x`` clipped to what codes of a reduced range reach: the kernels themselves clip at code 255."""
    if not scheme.reduce_range or x.is_quantized:
        return x
    scale, zero = qparams
    low, high = integer_limits(scheme)
    return x.nan_to_num(nan=torch.finfo(x.dtype).max).clamp(-zero * scale, (high - low - zero) * scale)
