"""Recorded calls cut into smaller ones, where a block treats samples one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from neural_compressor.torch.methods.autoround.block import RecordedBlock
from neural_compressor.torch.structure.replay import Arguments, independent

Sample = tuple[Arguments, Tensor]
"""A call, and the target of its first output."""


def samples_of(
    recorded: RecordedBlock, calls: Sequence[Arguments], targets: Sequence[Tensor], size: int
) -> list[Sample]:
    """The calls with their targets, cut into runs of at most ``size`` samples along the first axis.

    Which arguments go with the samples is not written on them: those are cut that are as long as the target. The block is
    asked whether it gives the same then, and where it does not, calls stay whole.
    """
    longest = max(range(len(calls)), key=lambda i: _length(targets[i]))
    if _length(targets[longest]) <= size or not _cuts_well(recorded, calls[longest], targets[longest], size):
        return list(zip(calls, targets, strict=True))
    return [
        (_cut(call, len(target), rows), target[rows])
        for call, target in zip(calls, targets, strict=True)
        for rows in _runs(_length(target), size)
    ]


def batches(samples: Sequence[Sample], size: int, seed: int) -> Iterator[list[Sample]]:
    """Endless batches of about ``size`` samples, each pass in a new order."""
    generator = torch.Generator().manual_seed(seed)
    batch: list[Sample] = []
    held = 0
    while True:
        for index in torch.randperm(len(samples), generator=generator).tolist():
            batch.append(samples[index])
            held += _length(samples[index][1])
            if held >= size:
                yield batch
                batch, held = [], 0


def _length(target: Tensor) -> int:
    return target.shape[0] if target.ndim > 1 else 1


def _runs(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def _cut(call: Arguments, length: int, rows: slice) -> Arguments:
    return independent(call, lambda t: t[rows] if t.ndim and t.shape[0] == length else t)


def _cuts_well(recorded: RecordedBlock, call: Arguments, target: Tensor, size: int) -> bool:
    """Whether the first and the last run of a call, taken alone, give what they give in the whole."""
    runs = _runs(len(target), size)
    with torch.no_grad():
        whole = recorded(call).float()
        if whole.shape[0] != len(target):
            return False
        for rows in (runs[0], runs[-1]):
            try:
                alone = recorded(_cut(call, len(target), rows)).float()
            except RuntimeError:  # shapes that no longer fit each other
                return False
            if alone.shape != whole[rows].shape:
                return False
            # Kernels round differently for other sizes; samples that see each other differ by far more.
            distance = torch.linalg.vector_norm(alone - whole[rows])
            if not bool(distance <= 0.02 * torch.linalg.vector_norm(whole[rows])):
                return False
    return True
