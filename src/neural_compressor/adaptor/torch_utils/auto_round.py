"""Calibration data for AutoRound."""

from __future__ import annotations

from typing import Any

from neural_compressor.torch.algorithms.weight_only import autoround

__all__ = ["get_dataloader"]


def get_dataloader(
    tokenizer: Any, seqlen: int, dataset_name: Any = None, seed: int = 42, bs: int = 8, n_samples: int = 512
) -> list[Any]:
    """That of the 3.x API by the names that 2.x has: batches of token ids of a text file, or of a list of texts."""
    return autoround.get_dataloader(tokenizer, seqlen, dataset_name, seed, bs, nsamples=n_samples)
