"""Batches of token ids from local texts."""

from __future__ import annotations

import random
from typing import Any

import torch

from neural_compressor.torch.quantization.texts import calls_from


def text_batches(
    tokenizer: Any, dataset: Any, *, seqlen: int = 2048, bs: int = 8, nsamples: int = 128, seed: int = 42
) -> list[Any]:
    """Up to ``nsamples`` samples of ``seqlen`` tokens in batches of ``bs``, in an order drawn by ``seed``.

    ``dataset`` is a text file, a list of texts or batches; the name of a data set to download is an error that says so.
    Batches of ids are dicts with ``input_ids`` and ``attention_mask``, as ``model(**batch)`` takes them.
    """
    calls = calls_from(dataset, tokenizer, nsamples=nsamples, seqlen=seqlen, batch_size=bs)
    found = [kwargs or _named(args[0]) for args, kwargs in calls]
    random.Random(seed).shuffle(found)
    return found


def _named(batch: Any) -> Any:
    """A tensor of ids by the name that models know it by; its rows are of one length, and nothing in them is padding."""
    if isinstance(batch, torch.Tensor):
        return {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
    return batch
