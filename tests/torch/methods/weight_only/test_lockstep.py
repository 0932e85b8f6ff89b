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


def test_a_model_that_catches_everything_can_be_given_up():
    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                try:
                    x = block(x)
                except:  # noqa: E722
                    x = x + 1
            return x

    def give_up():
        for _ in Lockstep(Catching(), [((torch.ones(1, 4),), {})], ["blocks.0", "blocks.1"]):
            break

    driver = threading.Thread(target=give_up, daemon=True)
    driver.start()
    driver.join(10)
    assert not driver.is_alive()


def test_after_an_error_new_threads_compute_in_as_many_threads_as_before(model):
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="shapes"):
            list(Lockstep(model, [((torch.randn(2, 3),), {})], ["head"]))
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [2]


def test_samples_have_the_gpu_that_the_driver_has(model, monkeypatch):
    current, seen = threading.local(), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "number", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(current, "number", number))
    monkeypatch.setattr(model.head, "forward", lambda x: seen.append(torch.cuda.current_device()) or x)
    torch.cuda.set_device(1)
    list(Lockstep(model, inputs(2), NAMES))
    assert seen == [1, 1]


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


class Chain(nn.Module):
    """Blocks of which ``between`` says what happens to what one hands to the next."""

    def __init__(self, between, blocks=5):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.between = between

    def forward(self, x):
        kept = []
        for place, block in enumerate(self.blocks):
            kept.append(x)
            # Each is called with arguments of its own.
            x = self.between(block(x, shift=kept[0].mean() * place), kept)
        return x, torch.stack(kept)


def plain(x, kept):
    return x


RUNS = [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"], ["blocks.4"]]
ALL = [name for run in RUNS for name in run]


def through_runs(model, calls, change=None):
    """What each sample gives behind blocks that ``change`` was called on, in runs; the stops, and what the floats gave."""
    results, stops, outputs = [], [], {}
    hook = model.register_forward_hook(lambda module, args, output: results.append(output))
    for stop in Lockstep(model, calls, ALL, float_stream=True, runs=RUNS):
        stops.append(stop)
        with torch.no_grad():
            outputs[tuple(stop.blocks)] = [run() for run in stop.float_runs]
            again = [call_block(stop.module, call) for call in stop.float_calls]
        torch.testing.assert_close(again, outputs[tuple(stop.blocks)], rtol=0, atol=0)
        for name in stop.blocks if change else ():
            change(model.get_submodule(name))
    hook.remove()
    return results, stops, outputs


def halve(block):
    block.fc.weight.data.mul_(0.5)


def test_samples_wait_before_the_first_block_of_a_run(caplog):
    torch.manual_seed(0)
    model, calls = Chain(plain).eval(), inputs(3)
    with torch.no_grad():
        floats = [model(*args) for args, _ in calls]
    results, stops, outputs = through_runs(model, calls, halve)
    assert [list(stop.blocks) for stop in stops] == RUNS
    assert not caplog.records
    with torch.no_grad():
        expected = [model(*args) for args, _ in calls]  # all of it halved
    quantized = [each for each in results if all(not torch.equal(each[0], out) for out, _ in floats)]
    # What the model keeps of blocks inside of a run is that of the changed ones too.
    assert len(quantized) == len(expected) == 3
    for out, reference in zip(quantized, expected, strict=True):
        torch.testing.assert_close(out, reference, rtol=0, atol=0)
    for place, (_, kept) in enumerate(floats):
        torch.testing.assert_close(outputs["blocks.0", "blocks.1"][place], kept[2], rtol=0, atol=0)
        torch.testing.assert_close(outputs["blocks.2", "blocks.3"][place], kept[4], rtol=0, atol=0)


def test_the_call_of_a_run_gives_gradients_to_all_of_its_blocks():
    torch.manual_seed(0)
    model, calls = Chain(plain).eval(), inputs(1)
    steps = iter(Lockstep(model, calls, ALL, float_stream=True, runs=RUNS))
    stop = next(steps)
    args, kwargs = stop.calls[0]
    stop.module(*args, **kwargs).sum().backward()
    assert all(bool(model.blocks[place].fc.weight.grad.any()) for place in (0, 1))
    assert model.blocks[2].fc.weight.grad is None
    steps.close()


@pytest.mark.parametrize(
    ("between", "said"),
    [
        (lambda x, kept: x * 2, "computes with"),
        (lambda x, kept: x.add_(1), "computes with"),
        (lambda x, kept: x[:, :4], "computes with"),
        (lambda x, kept: x if float(x.sum()) > -1e9 else kept[0], "computes with"),
        (lambda x, kept: kept[0], "does not call"),
    ],
)
def test_blocks_between_which_more_happens_are_not_joined(between, said, caplog):
    torch.manual_seed(0)
    model, calls = Chain(between).eval(), inputs(3)
    with torch.no_grad():
        floats = [model(*args)[0] for args, _ in calls]
    results, stops, _ = through_runs(model, calls)
    assert [list(stop.blocks) for stop in stops] == [[name] for name in ALL]
    (record,) = caplog.records
    assert "'blocks.0' and 'blocks.1'" in record.getMessage()
    assert said in record.getMessage()
    for out in floats:
        assert sum(torch.equal(out, found) for found, _ in results) == 2


def test_blocks_that_hand_on_several_values(monkeypatch, caplog):
    """A tuple, of which the next block gets the parts; later ones may get them too."""

    def forward(block, x, *, shift):
        return (block.fc(x).tanh(), None, {"shift": shift + 1})

    class Tuples(Chain):
        def forward(self, x):
            shift = x.mean()
            for block in self.blocks:
                x, _, more = block(x, shift=shift)
                shift = more["shift"]
            return x, shift

    monkeypatch.setattr(Block, "forward", forward)
    torch.manual_seed(0)
    model, calls = Tuples(plain).eval(), inputs(2)
    results, stops, _ = through_runs(model, calls, halve)
    assert [list(stop.blocks) for stop in stops] == RUNS
    with torch.no_grad():
        expected = [model(*args) for args, _ in calls]
    for reference in expected:
        assert sum(torch.equal(reference[0], found) for found, _ in results) == 1
    assert not caplog.records


def test_samples_that_leave_out_a_block_of_a_run(model, caplog):
    calls = [((torch.randn(2, 4),), {}), ((torch.randn(2, 4),), {"skip": True})]
    stops = stops_of(Lockstep(model, calls, NAMES, float_stream=True, runs=[NAMES]))
    assert [(list(s.blocks), len(s.calls)) for s in stops] == [(["blocks.0"], 2), (["blocks.1"], 1), (["blocks.2"], 2)]
    assert len(caplog.records) == 1


def test_a_block_called_again_inside_of_a_run():
    torch.manual_seed(0)
    model = Stack().eval()
    model.blocks[1] = model.blocks[0]
    names = ["blocks.0", "blocks.2"]
    stops = stops_of(Lockstep(model, inputs(2), names, float_stream=True, runs=[names]))
    assert [list(s.blocks) for s in stops] == [["blocks.0"], ["blocks.2"]]
    assert [len(s.float_calls) for s in stops] == [2, 2]
