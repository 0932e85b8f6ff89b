"""Running a block again with other weights leaves no trace on it."""

import itertools

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.methods.autoround.block import RecordedBlock, batches, first_tensor, samples_of
from neural_compressor.torch.quantization import AutoRoundConfig, quantize


class Conv1D(nn.Module):
    """A linear layer with its weight stored (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), Conv1D(4, 6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, *, scale=1.0):
        return (x + self.drop(self.down(torch.relu(self.up(self.norm(x))))) * scale, "cache")


def make(amp=False):
    torch.manual_seed(0)
    block = Block().eval()
    return block, RecordedBlock(block, {"a.up": block.up, "a.down": block.down}, amp)


CALL = ((torch.randn(3, 4),), {"scale": 2.0})


def test_weights_take_the_place_of_the_blocks_own():
    block, recorded = make()
    weights = {"a.up": torch.randn(6, 4), "a.down": torch.randn(4, 6)}
    found = recorded(CALL, weights)
    hidden = torch.relu(block.norm(CALL[0][0]) @ weights["a.up"].T + block.up.bias)
    torch.testing.assert_close(found, CALL[0][0] + 2 * (hidden @ weights["a.down"].T + block.down.bias))
    torch.testing.assert_close(recorded(CALL), block(CALL[0][0], scale=2.0)[0])


def test_gradients_reach_the_weights_given_and_nothing_else():
    block, recorded = make()
    weights = {"a.up": torch.randn(6, 4, requires_grad=True), "a.down": torch.randn(4, 6, requires_grad=True)}
    recorded.loss(CALL, torch.zeros(3, 4), weights).backward()
    assert all(weight.grad.shape == weight.shape for weight in weights.values())
    assert all(parameter.grad is None for parameter in block.parameters())


def test_dropout_rests_and_modes_come_back():
    block, recorded = make()
    block.train()
    block.norm.eval()
    with torch.no_grad(), recorded.at_rest():
        assert torch.equal(recorded(CALL), recorded(CALL))
        assert torch.is_grad_enabled()
    assert block.training
    assert block.drop.training
    assert not block.norm.training


def test_mean_squares_are_those_of_what_each_layer_is_fed():
    block, recorded = make()
    calls = [((torch.randn(n, 4),), {}) for n in (3, 5)]
    found = recorded.mean_squares(calls)
    x = torch.cat([args[0] for args, _ in calls])
    with torch.no_grad():
        torch.testing.assert_close(found["a.up"], block.norm(x).square().mean(0))
        torch.testing.assert_close(found["a.down"], torch.relu(block.up(block.norm(x))).square().mean(0))
    assert not block.up._forward_pre_hooks


def test_bfloat16_changes_little():
    exact, rough = make(amp=False)[1](CALL), make(amp=True)[1](CALL)
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_of_16_bits_run_in_float32(dtype):
    _, recorded = make()
    low, recorded_low = make()
    low.to(dtype)
    recorded_low = RecordedBlock(low, recorded_low.layers, amp=False)
    found = recorded_low(((CALL[0][0].to(dtype),), {}))
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, recorded((CALL[0], {})), rtol=0.05, atol=0.05)
    assert {p.dtype for p in low.parameters()} == {dtype}


def test_tensors_made_in_inference_mode_can_be_trained_on():
    _, recorded = make()
    with torch.inference_mode():
        call = ((torch.randn(3, 4),), {})
    weights = {"a.up": torch.randn(6, 4, requires_grad=True)}
    recorded.loss(call, torch.zeros(3, 4), weights).backward()
    assert weights["a.up"].grad is not None


def test_the_first_tensor_is_found_in_what_blocks_give():
    tensor = torch.ones(1)
    for output in (tensor, (tensor, 2), [None, (tensor,)], {"hidden": tensor, "cache": torch.zeros(1)}):
        assert first_tensor(output) is tensor
    with pytest.raises(CalibrationError, match="gave str"):
        first_tensor("nothing")


def test_a_layer_of_another_block_is_refused():
    with pytest.raises(ConfigError, match=r"'head'.*no part of the block Block"):
        RecordedBlock(Block(), {"head": nn.Linear(2, 2)})


def test_a_target_of_another_shape_is_refused():
    with pytest.raises(CalibrationError, match=r"\(3, 4\).*target has \(3, 5\)"):
        make()[1].loss(CALL, torch.zeros(3, 5))


def test_nan_in_the_data_is_named_with_the_layer():
    with pytest.raises(CalibrationError, match=r"NaN or Inf reached layer 'a\.up'"):
        make()[1].mean_squares([((torch.full((2, 4), float("nan")),), {})])


def test_a_weight_that_two_layers_share_is_replaced_in_both():
    block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    block[1].weight = block[0].weight
    recorded = RecordedBlock(block, {"1": block[1]}, amp=False)
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    expected = (x @ weight.T + block[0].bias) @ weight.T + block[1].bias
    torch.testing.assert_close(recorded(((x,), {}), {"1": weight}), expected)


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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_a_model_with_batch_normalisation_is_trained_in_its_own_type(kind):
    torch.manual_seed(0)
    layers = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)
    model, x = nn.Sequential(*layers).to(kind).eval(), torch.randn(64, 64, dtype=kind)
    expected = model(x).float()
    new = quantize(model, AutoRoundConfig(iters=3, group_size=32), run_fn=lambda m: m(x), quiet=True)
    assert new(x).dtype == kind
    assert new[1].running_mean.dtype == kind
    assert (new(x).float() - expected).norm() < 0.2 * expected.norm()
