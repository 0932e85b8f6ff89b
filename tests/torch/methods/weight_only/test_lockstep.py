"""Samples stop before every block and run through what was made of it."""

import threading
import weakref

import pytest
import torch
from torch import nn

from neural_compressor.torch.methods.weight_only.lockstep import Lockstep
from neural_compressor.torch.structure.replay import call_block


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


def stops_of(steps):
    """All stops, with the float samples let through."""
    stops = []
    for stop in steps:
        stops.append(stop)
        for run in stop.float_runs:
            run()
    return stops


def test_samples_run_through_the_changed_block_and_floats_do_not(model):
    calls = inputs()
    before = {name: [p.clone() for p in model.get_submodule(name).parameters()] for name in NAMES}
    seen, outputs = {}, {}
    for stop in Lockstep(model, calls, NAMES, float_stream=True):
        seen[stop.block] = stop
        outputs[stop.block] = [run() for run in stop.float_runs]
        nn.init.zeros_(model.get_submodule(stop.block).fc.weight)
    x = calls[0][0][0]
    weight, bias = before["blocks.0"]
    changed = torch.tanh(bias).expand(2, 4) + x.mean()
    torch.testing.assert_close(seen["blocks.1"].calls[0][0][0], changed)
    torch.testing.assert_close(seen["blocks.1"].float_calls[0][0][0], torch.tanh(x @ weight.T + bias) + x.mean())
    torch.testing.assert_close(outputs["blocks.0"][0], seen["blocks.1"].float_calls[0][0][0])


def test_a_float_sample_must_pass_before_its_block_changes(model):
    with pytest.raises(RuntimeError, match=r"left before 'blocks\.0'"):
        list(Lockstep(model, inputs(), NAMES, float_stream=True))


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
    assert not any("forward" in b.__dict__ for b in model.blocks)
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


def test_blocks_run_in_the_thread_that_drives(model, monkeypatch):
    threads = []

    def forward(block, x, *, shift):
        threads.append(threading.current_thread())
        return x + shift

    monkeypatch.setattr(Block, "forward", forward)
    assert len(stops_of(Lockstep(model, inputs(2), NAMES, float_stream=True))) == 3
    assert threads == [threading.current_thread()] * 12


def test_samples_compute_in_one_thread_and_the_driver_in_as_many_as_before(model, monkeypatch):
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(model.head, "forward", lambda x: seen.append(torch.get_num_threads()) or x)
    torch.set_num_threads(2)
    try:
        list(Lockstep(model, inputs(2), NAMES))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_what_reached_a_block_is_not_held_when_the_next_is_reached(model):
    earlier = []
    for stop in Lockstep(model, inputs(3), NAMES):
        assert not any(ref() is not None for ref in earlier)
        if stop.block != NAMES[0]:  # what the first is called with are the samples themselves
            earlier = [weakref.ref(args[0]) for args, _ in stop.calls]
        del stop


def test_a_block_that_is_called_again_does_not_hold_up_the_float_samples():
    torch.manual_seed(0)
    model = Stack().eval()
    model.blocks[1] = model.blocks[0]
    names = ["blocks.0", "blocks.2"]
    stops = stops_of(Lockstep(model, inputs(2), names, float_stream=True))
    assert [s.block for s in stops] == names
    assert [len(s.float_calls) for s in stops] == [2, 2]
    torch.testing.assert_close(stops[1].float_calls[0][0][0], stops[1].calls[0][0][0])
