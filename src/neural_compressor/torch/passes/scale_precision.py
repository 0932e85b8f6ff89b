"""The float type in which weight-only layers hold their scales."""

from __future__ import annotations

import torch
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear


def hold_scales_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Round the float scales of all weight-only layers to ``dtype``: in 16 bits they take half the memory.

    >>> from neural_compressor.schemes import OpScheme
    >>> scheme = OpScheme.from_dict({"weight": {"dtype": "int4", "group_size": 32}})
    >>> model = nn.Sequential(WeightOnlyLinear.from_float(nn.Linear(64, 8), scheme))
    >>> hold_scales_in(model, torch.bfloat16)
    >>> model[0].weight_scale.dtype
    torch.bfloat16
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, WeightOnlyLinear):
            continue
        scale = layer._buffers.get("weight_scale")
        if scale is None or not scale.is_floating_point():
            raise QuantizationError(f"layer {name!r} has scales of a small type already; leave out the type of scales")
        new = scale.to(dtype)
        lost = ~torch.isfinite(new) | ((new == 0) & (scale != 0))
        if bool(lost.any()):
            raise QuantizationError(
                f"layer {name!r} has scales from {float(scale.abs().min()):.3g} to {float(scale.abs().max()):.3g}, which "
                f"{dtype} cannot hold; use bf16 or fp32 for the scales"
            )
        layer.register_buffer("weight_scale", new)
        layer._settle()
