"""Recorded calls are cut into samples only where that changes nothing."""

import itertools

import pytest
import torch
from torch import nn

from neural_compressor.torch.methods.autoround.block import RecordedBlock
from neural_compressor.torch.methods.autoround.samples import batches, samples_of


class Masked(nn.Module):
    """Adds per-sample and shared arguments; ``mixes`` lets samples see each other."""

    def __init__(self, mixes=False):
        super().__init__()
        self.fc, self.mixes = nn.Linear(4, 4), mixes

    def forward(self, x, shared=None, per_sample=None):
        y = self.fc(x)
        if per_sample is not None:
            y = y * per_sample[0][:, None]
        if shared is not None:
            y = y + shared
        return y - y.mean(0) if self.mixes else y


def record(block, lengths=(6, 4), **options):
    torch.manual_seed(0)
    calls = []
    for length in lengths:
        kwargs = {"shared": torch.randn(1, 4), "per_sample": [torch.rand(length) + 0.5]}
        calls.append(((torch.randn(length, 4),), kwargs))
    recorded = RecordedBlock(block, {"fc": block.fc}, amp=False)
    targets = [recorded(call).detach() for call in calls]
    return recorded, calls, targets


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_samples_give_what_they_gave_in_the_whole(size):
    recorded, calls, targets = record(Masked())
    samples = samples_of(recorded, calls, targets, size)
    assert [len(target) for _, target in samples] == [
        min(size, length - start) for length in (6, 4) for start in range(0, length, size)
    ]
    torch.testing.assert_close(torch.cat([t for _, t in samples]), torch.cat(targets))
    for call, target in samples:
        torch.testing.assert_close(recorded(call), target)


def test_calls_that_are_short_enough_stay_as_they_are():
    recorded, calls, targets = record(Masked())
    samples = samples_of(recorded, calls, targets, 6)
    assert [call for call, _ in samples] == calls


def test_samples_that_see_each_other_stay_together():
    recorded, calls, targets = record(Masked(mixes=True))
    assert [len(target) for _, target in samples_of(recorded, calls, targets, 2)] == [6, 4]


def test_an_argument_that_only_looks_like_samples_keeps_calls_whole():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x, gain):
            return self.fc(x) * gain

    block = Columns()
    recorded = RecordedBlock(block, {"fc": block.fc}, amp=False)
    call = ((torch.randn(6, 6), torch.rand(6)), {})  # gain is as long as there are samples, but belongs to columns
    assert len(samples_of(recorded, [call], [recorded(call).detach()], 2)) == 1


def test_every_pass_sees_every_sample_once_in_a_new_order():
    samples = [(((torch.tensor(i),), {}), torch.zeros(1, 2)) for i in range(12)]

    def numbers(seed, count):
        drawn = itertools.islice(batches(samples, 3, seed), count)
        return [[int(call[0][0]) for call, _ in batch] for batch in drawn]

    first, second = numbers(1, 8)[:4], numbers(1, 8)[4:]
    for passed in (first, second):
        assert sorted(itertools.chain(*passed)) == list(range(12))
    assert first != second
    assert numbers(1, 4) == first
    assert numbers(2, 4) != first


def test_a_batch_takes_calls_until_it_has_enough_samples():
    samples = [(((), {}), torch.zeros(length, 2)) for length in (2, 2, 2, 2)]
    assert len(next(batches(samples, 3, 0))) == 2
    assert len(next(batches(samples, 1, 0))) == 1
