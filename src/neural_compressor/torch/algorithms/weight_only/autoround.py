"""Calibration data for AutoRound."""

from __future__ import annotations

from typing import Any

from neural_compressor.transformers.text_batches import text_batches

__all__ = ["get_dataloader"]


def get_dataloader(
    tokenizer: Any, seqlen: int = 2048, dataset_name: Any = None, seed: int = 42, bs: int = 8, nsamples: int = 128
) -> list[Any]:
    """Batches of token ids of a text file, or of a list of texts, given as ``dataset_name``."""
    return text_batches(tokenizer, dataset_name, seqlen=seqlen, bs=bs, nsamples=nsamples, seed=seed)
