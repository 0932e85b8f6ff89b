"""Rounding to block formats on CUDA devices, by one Triton kernel: values are read once and written once.

It stands beside :func:`~neural_compressor.schemes.block_rounding.round_blocks`, whose results it gives to the bit.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from neural_compressor.dtypes import DType
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.block import is_power_of_two_scale, tensor_scale_over
from neural_compressor.schemes.block_rounding import FASTER
from neural_compressor.schemes.granularity import PerGroup
from neural_compressor.schemes.ranges import scale_granularity

_ROUNDINGS = {"even": 0, "nearest": 1, "floor": 2}
_TILE, _WIDEST = 2048, 4096
_HAS_TRITON = importlib.util.find_spec("triton") is not None


class TritonBlockRounding:
    """Scales of powers of two (MX), or of a small float and one for the tensor (NVFP4)."""

    def fits(self, scheme: TensorScheme) -> bool:
        """Whether the kernel knows the format and the rounding; random rounding it does not."""
        kind, granularity = scheme.dtype, scale_granularity(scheme)
        element, scales = kind.element_type, kind.scale_type
        if scales is None or scheme.rounding not in _ROUNDINGS or not isinstance(granularity, PerGroup):
            return False
        regular = element.is_integer or element.binades is not None
        scaled = is_power_of_two_scale(scales) or scales.binades is not None
        return regular and scaled and granularity.size <= _WIDEST and _HAS_TRITON

    def __call__(self, x: Tensor, scheme: TensorScheme, tensor_scale: Tensor | None = None) -> Tensor:
        """``x`` (float32, on one device) rounded."""
        kind, width = scheme.dtype, x.shape[-1]
        granularity, scales = scale_granularity(scheme), kind.scale_type
        assert scales is not None
        assert isinstance(granularity, PerGroup)
        x = x.contiguous()
        if kind.has_tensor_scale and tensor_scale is None:
            tensor_scale = tensor_scale_over(x.abs().amax(), kind, scales)
        whole = torch.ones((), device=x.device) if tensor_scale is None else tensor_scale.to(x.device, torch.float32)
        size = min(granularity.size, width)
        in_row = -(-width // size)
        groups = x.numel() // width * in_row
        padded = 1 << (size - 1).bit_length()
        tile = max(1, _TILE // padded)
        out = torch.empty_like(x)
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # Triton launches on the current device, wherever tensors are
            _kernel()[(-(-groups // tile),)](
                x,
                out,
                whole,
                groups,
                in_row,
                width,
                size=size,
                padded=padded,
                tile=tile,
                rounding=_ROUNDINGS[scheme.rounding],
                **_element(kind.element_type),
                **_scales(kind, scales),
            )
        return out


def _element(kind: DType) -> dict[str, Any]:
    """The values of a block, in the numbers that the kernel is compiled for."""
    lowest, mantissa = (0, 0) if kind.binades is None else kind.binades
    limits = {"smallest": float(kind.min), "largest": float(kind.max)}
    return {"is_integer": kind.is_integer, "lowest": 2.0**lowest, "ulp": 2.0**-mantissa, **limits}


def _scales(kind: DType, scales: DType) -> dict[str, Any]:
    peak = float(kind.element_type.peak)
    if is_power_of_two_scale(scales):
        return {
            "is_power": True,
            "peak": peak,
            "top": math.floor(math.log2(peak)),
            "first": math.floor(math.log2(min(value for value in scales.grid if value > 0))),
            "last": math.floor(math.log2(scales.max)),
            "scale_lowest": 0.0,
            "scale_ulp": 0.0,
            "scale_least": 0.0,
            "scale_most": 0.0,
        }
    assert scales.binades is not None
    return {
        "is_power": False,
        "peak": peak,
        "top": 0,
        "first": 0,
        "last": 0,
        "scale_lowest": 2.0**scales.binades.lowest,
        "scale_ulp": 2.0**-scales.binades.mantissa,
        "scale_least": min(value for value in scales.grid if value > 0),
        "scale_most": float(scales.max),
    }


@functools.cache
def _kernel() -> Any:
    """The kernel; Triton is imported when it is first needed."""
    from neural_compressor.torch.modules.kernels.block_triton_kernel import round_blocks_kernel

    return round_blocks_kernel


FASTER["cuda"] = TritonBlockRounding()
