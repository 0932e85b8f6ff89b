"""Calibration of a prepared model. Methods that go block by block do so by themselves when the model is converted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from neural_compressor.torch.batches import run_batches

__all__ = ["block_wise_calibration"]


def block_wise_calibration(model: nn.Module, dataloader: Iterable[Any], num_samples: int | None = None) -> None:
    """Run a prepared model over the data, all of it or at least ``num_samples`` samples."""
    run_batches(model, dataloader, 2**62 if num_samples is None else num_samples)
