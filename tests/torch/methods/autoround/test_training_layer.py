"""AutoRound for one layer, from the second moments of its inputs."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics, quadratic_loss
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme, quantize
from neural_compressor.torch import quantization
from neural_compressor.torch.methods.autoround.training import AutoRoundOptions, tune_block, tune_layer
from neural_compressor.torch.quantization import AutoRoundConfig


def seen_and_weight(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(256, 8) @ torch.randn(8, 32) + 0.1 * torch.randn(256, 32)
    seen = InputStatistics()
    seen.update(x)
    return x, seen, torch.randn(16, 32)


@pytest.mark.parametrize("name", ["int2", "int4", "nf4"])
@pytest.mark.parametrize("granularity", [PerGroup(16), PER_CHANNEL], ids=["groups", "channels"])
def test_outputs_move_less_than_by_rounding(name, granularity):
    _, seen, weight = seen_and_weight()
    scheme = TensorScheme(dtype(name), granularity=granularity)
    trained = tune_layer(weight, scheme, seen, AutoRoundOptions(iters=100)).dequantize()
    rounded = quantize(weight, scheme).dequantize()
    assert quadratic_loss(weight, trained, seen.hessian) < 0.6 * quadratic_loss(weight, rounded, seen.hessian)


def test_it_is_training_of_the_layer_on_all_its_inputs_at_once():
    x, seen, weight = seen_and_weight()
    layer, scheme = nn.Linear(32, 16, bias=False), TensorScheme(dtype("int4"), granularity=PerGroup(16))
    layer.weight.data = weight
    options = AutoRoundOptions(iters=20, batch_size=256, amp=False, keep_best=False, momentum=0.9)
    calls, targets = [((x,), {})], [layer(x).detach()]
    block = tune_block(layer, {"": layer}, {"": scheme}, calls, targets, options)[""].array
    alone = tune_layer(weight, scheme, seen, options).array
    assert float((block.codes == alone.codes).float().mean()) > 0.99
    torch.testing.assert_close(block.scale, alone.scale, rtol=0.02, atol=0)


def test_training_that_makes_things_worse_is_given_up():
    _, seen, weight = seen_and_weight()
    scheme = TensorScheme(dtype("int4"), granularity=PerGroup(16))
    start = tune_layer(weight, scheme, seen, AutoRoundOptions(iters=0)).array.codes
    for keep_best in (True, False):
        wild = AutoRoundOptions(iters=1, lr=50.0, keep_best=keep_best)
        assert torch.equal(tune_layer(weight, scheme, seen, wild).array.codes, start) is keep_best


class Classifier(nn.Module):
    """Blocks, and a layer behind them that is in none."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_layers_outside_the_blocks_are_tuned_on_the_inputs_asked_for():
    torch.manual_seed(0)
    model, x = Classifier(), torch.randn(64, 4) @ torch.randn(4, 16)
    heads = {}
    for quanted in (True, False):
        config = AutoRoundConfig(bits=2, group_size=-1, iters=30, enable_quanted_input=quanted, amp=False)
        new = quantization.quantize(copy.deepcopy(model), config, run_fn=lambda m: m(x))
        heads[quanted] = new.head.dequantized_weight()
        for block in new.blocks:
            block[0].exact = True  # as in calibration without amp
        reaching = x
        for block in new.blocks if quanted else model.blocks:
            reaching = block(reaching)
        seen = InputStatistics()
        seen.update(reaching)
        scheme = TensorScheme(dtype("int2"), granularity=PER_CHANNEL, algorithm="autoround")
        options = AutoRoundOptions(iters=30, batch_size=8, full_range=True)
        expected = tune_layer(model.head.weight.detach(), scheme, seen, options).dequantize()
        torch.testing.assert_close(heads[quanted], expected, rtol=0.02, atol=1e-3)
    assert not torch.equal(heads[True], heads[False])
