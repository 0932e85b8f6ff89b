"""Calibration of a prepared model. Methods that go block by block do so by themselves when the model is converted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.batches import run_batches

__all__ = ["block_wise_calibration"]


def block_wise_calibration(
    model: nn.Module,
    dataloader: Iterable[Any] | None = None,
    data: Any = None,
    inference_dtype: torch.dtype | None = None,
    num_samples: int | None = None,
) -> None:
    """Run a prepared model over the data, all of it or at least ``num_samples`` samples; ``data`` is one batch.

    The model computes in the type that it has; ``inference_dtype`` says which that is, and may be left out.
    """
    if (dataloader is None) == (data is None):
        raise ConfigError("block_wise_calibration: give dataloader, or data, which is one batch")
    kinds = {parameter.dtype for parameter in model.parameters()}
    if inference_dtype is not None and kinds and inference_dtype not in kinds:
        raise ConfigError(
            f"block_wise_calibration: inference_dtype is {inference_dtype}, and the model computes in "
            f"{', '.join(sorted(map(str, kinds)))}: bring it there with .to({inference_dtype}) before prepare"
        )
    run_batches(model, [data] if dataloader is None else dataloader, 2**62 if num_samples is None else num_samples)
