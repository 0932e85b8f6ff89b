"""Samples stop before every block and run through what was made of it."""

import threading

import pytest
import torch
from torch import nn

from neural_compressor.torch.weight_only.lockstep import Lockstep, call_block


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, *, shift):
        return self.fc(x).tanh() + shift


class Stack(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)

    def forward(self, x, skip=False):
        shift = x.mean()
        for i, block in enumerate(self.blocks):
            if not (skip and i == 1):
                x = block(x, shift=shift)
        return self.head(x)


NAMES = ["blocks.0", "blocks.1", "blocks.2"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack().eval()


def inputs(count=5):
    return [((torch.randn(2, 4),), {}) for _ in range(count)]


def test_each_block_is_seen_once_with_what_it_is_called_with(model):
    calls = inputs()
    stops = list(Lockstep(model, calls, NAMES))
    assert [s.block for s in stops] == NAMES
    x = calls[3][0][0]
    with torch.no_grad():
        hidden = model.blocks[0](x, shift=x.mean())
    args, kwargs = stops[1].calls[3]
    torch.testing.assert_close(args[0], hidden)
    torch.testing.assert_close(kwargs["shift"], x.mean())


def test_samples_run_through_the_changed_block_and_floats_do_not(model):
    calls = inputs()
    before = {name: [p.clone() for p in model.get_submodule(name).parameters()] for name in NAMES}
    seen = {}
    for stop in Lockstep(model, calls, NAMES, float_stream=True):
        seen[stop.block] = stop
        nn.init.zeros_(model.get_submodule(stop.block).fc.weight)
    x = calls[0][0][0]
    weight, bias = before["blocks.0"]
    changed = torch.tanh(bias).expand(2, 4) + x.mean()
    torch.testing.assert_close(seen["blocks.1"].calls[0][0][0], changed)
    torch.testing.assert_close(seen["blocks.1"].float_calls[0][0][0], torch.tanh(x @ weight.T + bias) + x.mean())


def test_a_sample_that_skips_a_block(model):
    calls = [((torch.randn(2, 4),), {}), ((torch.randn(2, 4),), {"skip": True})]
    stops = {s.block: len(s.calls) for s in Lockstep(model, calls, NAMES)}
    assert stops == {"blocks.0": 2, "blocks.1": 1, "blocks.2": 2}


def test_blocks_can_be_called_while_samples_wait(model):
    for stop in Lockstep(model, inputs(2), NAMES):
        assert call_block(model.get_submodule(stop.block), stop.calls[0]).shape == (2, 4)


def test_an_error_in_the_model_is_raised_and_nothing_is_left_behind(model):
    threads = threading.active_count()
    with pytest.raises(RuntimeError, match="shapes"):
        list(Lockstep(model, [((torch.randn(2, 3),), {})], NAMES))
    assert not any(b._forward_pre_hooks for b in model.blocks)
    for _ in range(100):
        if threading.active_count() <= threads:
            break
        threading.Event().wait(0.01)
    assert threading.active_count() <= threads


def test_giving_up_ends_the_threads(model):
    threads = threading.active_count()
    for _ in Lockstep(model, inputs(4), NAMES):
        break
    for _ in range(100):
        if threading.active_count() <= threads:
            break
        threading.Event().wait(0.01)
    assert threading.active_count() <= threads
