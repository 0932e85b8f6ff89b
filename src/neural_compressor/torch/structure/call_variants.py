"""Calls like a recorded one, with other numbers of samples, lengths and orders: forwards may branch on any of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from neural_compressor.torch.batches import batch_size, tensors_in
from neural_compressor.torch.structure.replay import Arguments, independent

Change = Callable[[Tensor], Tensor]


def variants(call: Arguments, longer: bool) -> Iterator[Arguments]:
    """``call`` with twice as many samples, the last half of each reversed, one token alone, if ``longer`` twice as long.

    Values are those of the call, so that no index leaves its table; but positions may, where it is longer: that ends the
    context of an accelerator, and is for models on a CPU alone. A model need not be able to run on each.

    >>> [list(ids.shape) for (ids,), _ in variants(((torch.arange(10).reshape(2, 5),), {}), longer=True)]
    [[4, 5], [2, 2], [2, 1], [2, 10]]
    """
    tensors = list(tensors_in(call))
    rows, length = batch_size(call), _length(tensors)

    def changed(axis: int, size: int, change: Change) -> Arguments:
        return independent(call, lambda t: change(t) if t.dim() > axis and t.shape[axis] == size else t)

    if any(t.dim() for t in tensors):
        yield changed(0, rows, lambda t: torch.cat([t, t]))
    if length > 1:
        yield changed(1, length, lambda t: t[:, -(length // 2) :].flip(1))
        yield changed(1, length, lambda t: t[:, :1])
    if length and longer:
        yield changed(1, length, lambda t: torch.cat([t, t], 1))


def _length(tensors: list[Tensor]) -> int:
    """Tokens of a sample: where there are integers of shape (samples, tokens), theirs, or else those of vectors."""
    numbers = [t for t in tensors if t.dim() == 2 and not t.is_floating_point()]
    vectors = [t for t in tensors if t.dim() == 3]
    return next((t.shape[1] for t in (*numbers, *vectors)), 0)
