"""Running a block again with other weights leaves no trace on it."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.methods.autoround.block import RecordedBlock, first_tensor


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
