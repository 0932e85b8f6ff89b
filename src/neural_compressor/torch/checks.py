"""Checks of a float model before any work is done on it."""

from __future__ import annotations

import torch
from torch import nn

from neural_compressor.errors import QuantizationError


def check_finite(model: nn.Module) -> None:
    """Refuse a model whose parameters hold NaN or Inf, naming the first one."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            raise QuantizationError(
                f"parameter {name!r} of shape {tuple(parameter.shape)} holds NaN or Inf; repair the float model first"
            )
