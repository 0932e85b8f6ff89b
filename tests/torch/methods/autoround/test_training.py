"""AutoRound makes a block lose less than rounding does, and leaves the block alone."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme, quantize
from neural_compressor.torch.methods.autoround.training import AutoRoundOptions, tune_block

QUICK = AutoRoundOptions(iters=40, amp=False)
WIDTH = 32


class Attention(nn.Module):
    """A small transformer block with a mask by keyword and a tuple for output."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, *, mask=None):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return (x + self.down(nn.functional.silu(self.up(self.norm(x)))), None)


def make(samples=8, length=16, seed=0):
    """A block, and calls with inputs that are correlated as those of a language model are."""
    torch.manual_seed(seed)
    block = Attention().eval()
    mixing = torch.randn(WIDTH // 4, WIDTH) + 0.3 * torch.randn(1, WIDTH)
    mask = torch.ones(length, length).tril().bool()
    calls = [
        ((torch.randn(1, length, WIDTH // 4) @ mixing + 0.1 * torch.randn(1, length, WIDTH),), {"mask": mask})
        for _ in range(samples)
    ]
    with torch.no_grad():
        targets = [block(*args, **kwargs)[0] for args, kwargs in calls]
    layers = {f"h.0.{name}": module for name, module in block.named_modules() if isinstance(module, nn.Linear)}
    return block, layers, calls, targets


def tune(scheme, made, options=QUICK):
    block, layers, calls, targets = made
    return tune_block(block, layers, dict.fromkeys(layers, scheme), calls, targets, options)


def loss_with(made, weights):
    """What the block loses with these weights, run the plain way."""
    block, layers, calls, targets = made
    block = copy.deepcopy(block)
    with torch.no_grad():
        for name in layers:
            block.get_submodule(name.removeprefix("h.0.")).weight.copy_(weights[name])
        outputs = [block(*args, **kwargs)[0] for args, kwargs in calls]
    return float(sum(((y - t) ** 2).sum() for y, t in zip(outputs, targets, strict=True)))


def dequantized(results):
    return {name: result.array.dequantize() for name, result in results.items()}


def rounded(scheme, made):
    return {name: quantize(layer.weight.detach(), scheme).dequantize() for name, layer in made[1].items()}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("granularity", [PerGroup(16), PER_CHANNEL], ids=["groups", "channels"])
def test_a_block_loses_less_than_by_rounding(bits, symmetric, granularity):
    scheme, made = TensorScheme(dtype(f"int{bits}"), symmetric, granularity), make()
    trained = loss_with(made, dequantized(tune(scheme, made)))
    started = loss_with(made, dequantized(tune(scheme, made, AutoRoundOptions(iters=0, amp=False))))
    assert trained < 0.75 * started
    assert trained < 0.7 * loss_with(made, rounded(scheme, made))


@pytest.mark.parametrize("name", ["nf4", "fp4_e2m1"])
def test_values_that_are_not_evenly_spaced_are_learned_too(name):
    scheme, made = TensorScheme(dtype(name), granularity=PerGroup(16)), make()
    trained = loss_with(made, dequantized(tune(scheme, made)))
    assert trained < 0.75 * loss_with(made, dequantized(tune(scheme, made, AutoRoundOptions(iters=0, amp=False))))
    assert trained < 0.7 * loss_with(made, rounded(scheme, made))


def test_samples_not_trained_on_gain_too():
    scheme, made = TensorScheme(dtype("int3"), False, PerGroup(16)), make(samples=48)
    block, layers, calls, targets = made
    held_out = (block, layers, calls[32:], targets[32:])
    weights = dequantized(tune(scheme, (block, layers, calls[:32], targets[:32])))
    assert loss_with(held_out, weights) < 0.7 * loss_with(held_out, rounded(scheme, made))


def test_errors_made_before_the_block_are_corrected():
    scheme, made = TensorScheme(dtype("int4"), False, PerGroup(16)), make(samples=24)
    block, layers, calls, targets = made
    # What reaches the block is no longer what the targets were made from: a little too large, as behind rounded layers.
    shifted = (block, layers, [((args[0] * 1.1,), kwargs) for args, kwargs in calls], targets)
    float_weights = {name: layer.weight.detach() for name, layer in layers.items()}
    options = AutoRoundOptions(iters=100, amp=False)
    on_shifted, on_float = (dequantized(tune(scheme, each, options)) for each in (shifted, made))
    assert loss_with(shifted, on_shifted) < 0.9 * loss_with(shifted, on_float)
    assert loss_with(shifted, on_shifted) < loss_with(shifted, float_weights)


def nearest(weight, scale):
    return torch.round(weight / scale).clamp(-8, 7) * scale


def coordinate_descent(weight, scale, x):
    """Round each weight up or down given all the others, until nothing changes: a local optimum, slowly."""
    gram, down = x.T @ x, torch.floor(weight / scale)
    error = nearest(weight, scale) - weight
    for _ in range(20):
        before = error.clone()
        for j in range(weight.shape[1]):
            others = error @ gram[:, j] - error[:, j] * gram[j, j]
            both = torch.stack([(down[:, j] + up).clamp(-8, 7) * scale[:, 0] - weight[:, j] for up in (0, 1)])
            costs = both.square() * gram[j, j] + 2 * both * others
            error[:, j] = both.gather(0, costs.argmin(0, keepdim=True))[0]
        if torch.equal(before, error):
            break
    return error


def test_comes_near_what_rounding_one_weight_after_the_other_reaches():
    torch.manual_seed(3)
    block = nn.Linear(64, 32, bias=False)
    x = (torch.randn(512, 64) * torch.arange(1, 65) ** -1.0) @ torch.randn(64, 64)
    calls, targets = [((part,), {}) for part in x.split(32)], list(block(x).detach().split(32))
    options = AutoRoundOptions(iters=200, batch_size=32, enable_minmax_tuning=False, amp=False)
    scheme = TensorScheme(dtype("int4"), granularity=PER_CHANNEL)
    array = tune_block(block, {"": block}, {"": scheme}, calls, targets, options)[""].array
    weight, scale = block.weight.detach(), array.scale[:, None]

    def loss(error):
        return float((error @ x.T).square().sum())

    found = loss(array.dequantize() - weight)
    assert found < 0.35 * loss(nearest(weight, scale) - weight)
    assert found < 3 * loss(coordinate_descent(weight, scale, x))


def test_the_same_seed_gives_the_same_codes_and_another_does_not():
    scheme = TensorScheme(dtype("int3"), granularity=PerGroup(16))
    first, second = tune(scheme, make()), tune(scheme, make())
    other = tune(scheme, make(), AutoRoundOptions(iters=40, amp=False, seed=7))
    for name, result in first.items():
        assert torch.equal(result.array.codes, second[name].array.codes)
        assert torch.equal(result.array.scale, second[name].array.scale)
    assert any(not torch.equal(first[name].array.codes, other[name].array.codes) for name in first)


def test_the_block_is_left_as_it_was():
    made = make()
    block = made[0].train()
    before = copy.deepcopy(block.state_dict())
    with torch.no_grad():
        tune(TensorScheme(dtype("int4"), granularity=PerGroup(16)), made, AutoRoundOptions(iters=3))
    assert all(torch.equal(value, before[key]) for key, value in block.state_dict().items())
    assert block.training
    assert all(p.grad is None and p.requires_grad for p in block.parameters())
    assert not any(m._forward_pre_hooks for m in block.modules())


def test_bfloat16_training_loses_little_of_the_gain():
    scheme, made = TensorScheme(dtype("int3"), False, PerGroup(16)), make()
    losses = {
        amp: loss_with(made, dequantized(tune(scheme, made, AutoRoundOptions(iters=40, amp=amp))))
        for amp in (True, False)
    }
    assert losses[True] < 1.3 * losses[False]


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_blocks_of_16_bits_are_tuned_too(precision):
    scheme, made = TensorScheme(dtype("int3"), False, PerGroup(16)), make()
    block, layers, calls, targets = copy.deepcopy(made[0]).to(precision), made[1], made[2], made[3]
    layers = {name: block.get_submodule(name.removeprefix("h.0.")) for name in layers}
    calls = [((args[0].to(precision),), kwargs) for args, kwargs in calls]
    found = dequantized(
        tune(scheme, (block, layers, calls, [t.to(precision) for t in targets]), AutoRoundOptions(iters=40))
    )
    assert loss_with(made, found) < 0.7 * loss_with(made, rounded(scheme, made))


def test_accumulated_batches_equal_one_large_batch():
    scheme = TensorScheme(dtype("int4"), granularity=PerGroup(16))
    large = tune(scheme, make(), AutoRoundOptions(iters=8, batch_size=4, amp=False))
    parts = tune(scheme, make(), AutoRoundOptions(iters=8, batch_size=2, gradient_accumulate_steps=2, amp=False))
    assert all(torch.equal(large[name].array.codes, parts[name].array.codes) for name in large)


def test_calls_of_many_samples_train_as_calls_of_one():
    block, layers, calls, targets = make()
    joined = [((torch.cat([args[0] for args, _ in calls]),), calls[0][1])]
    scheme, options = (
        TensorScheme(dtype("int4"), granularity=PerGroup(16)),
        AutoRoundOptions(iters=8, batch_size=1, amp=False),
    )
    one = tune(scheme, (block, layers, calls, targets), options)
    many = tune(scheme, (block, layers, joined, [torch.cat(targets)]), options)
    same = [float((one[n].array.codes == many[n].array.codes).float().mean()) for n in one]
    assert min(same) > 0.99  # kernels sum in another order, which may tip a sign


def test_training_that_makes_things_worse_is_given_up():
    scheme = TensorScheme(dtype("int4"), granularity=PerGroup(16))
    start = tune(scheme, make(), AutoRoundOptions(iters=0, amp=False))
    for keep_best in (True, False):
        wild = AutoRoundOptions(iters=1, lr=50.0, batch_size=1, amp=False, keep_best=keep_best)
        found = tune(scheme, make(), wild)
        assert all(torch.equal(found[n].array.codes, start[n].array.codes) for n in start) is keep_best


class Conv1D(nn.Module):
    """A linear layer with its weight stored (in, out)."""

    def __init__(self, linear):
        super().__init__()
        self.nf = linear.out_features
        self.weight = nn.Parameter(linear.weight.detach().T.contiguous())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


def test_conv1d_is_a_linear_layer_the_other_way_round():
    scheme, options = TensorScheme(dtype("int4"), False, PerGroup(16)), AutoRoundOptions(iters=8, amp=False)
    linear = tune(scheme, make(), options)
    block, _, calls, targets = make()
    for name in ("qkv", "out", "up", "down"):
        setattr(block, name, Conv1D(getattr(block, name)))
    layers = {f"h.0.{name}": getattr(block, name) for name in ("qkv", "out", "up", "down")}
    turned = tune(scheme, (block, layers, calls, targets), options)
    for name, result in linear.items():
        assert turned[name].array.shape == result.array.shape
        assert float((turned[name].array.codes == result.array.codes).float().mean()) > 0.99


class Experts(nn.Module):
    """Sends each sample to one of two layers."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x):
        return self.experts[int(x.sum() > 0)](x)


def test_experts_that_a_batch_does_not_reach_wait_for_one_that_does():
    torch.manual_seed(0)
    block = Experts()
    calls = [((torch.randn(4, 8) + sign,), {}) for sign in (1, -1, 1, -1)]
    targets = [block(*args).detach() for args, _ in calls]
    layers = {str(i): layer for i, layer in enumerate(block.experts)}
    scheme = TensorScheme(dtype("int3"))
    options = AutoRoundOptions(iters=30, batch_size=4, amp=False)
    found = tune_block(block, layers, dict.fromkeys(layers, scheme), calls, targets, options)
    for name, layer in layers.items():
        assert not torch.equal(found[name].array.codes, quantize(layer.weight.detach(), scheme).codes)


def test_layers_with_schemes_of_their_own():
    block, layers, calls, targets = make()
    names = list(layers)
    schemes = {
        name: TensorScheme(dtype(f"int{4 if i % 2 else 8}"), granularity=PerGroup(16)) for i, name in enumerate(names)
    }
    found = tune_block(block, layers, schemes, calls, targets, AutoRoundOptions(iters=3, amp=False))
    assert {name: result.array.scheme for name, result in found.items()} == schemes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_runs_on_cuda_with_calls_kept_on_the_cpu():
    scheme, made = TensorScheme(dtype("int3"), False, PerGroup(16)), make()
    block, layers, calls, targets = made
    found = tune(scheme, (block.cuda(), layers, calls, targets))
    assert all(result.array.codes.is_cuda for result in found.values())
    weights = {name: result.array.dequantize().cpu() for name, result in found.items()}
    block.cpu()
    assert loss_with(made, weights) < 0.7 * loss_with(made, rounded(scheme, made))


def test_bad_calls_are_refused():
    block, layers, calls, targets = make()
    scheme = TensorScheme(dtype("int4"))
    schemes = dict.fromkeys(layers, scheme)
    with pytest.raises(CalibrationError, match="at least one recorded call"):
        tune_block(block, layers, schemes, [], [], QUICK)
    with pytest.raises(CalibrationError, match="8 calls needs its target, and there are 7"):
        tune_block(block, layers, schemes, calls, targets[1:], QUICK)
    with pytest.raises(CalibrationError, match=r"layers 'h\.0\..*' gives NaN or Inf on sample 1"):
        tune_block(block, layers, schemes, calls[:2], [targets[0], targets[1] * float("nan")], QUICK)
    with pytest.raises(ConfigError, match=r"h\.0\.down.*only one of the two"):
        tune_block(block, layers, {n: s for n, s in schemes.items() if n != "h.0.down"}, calls, targets, QUICK)
    with pytest.raises(ConfigError, match="no layers to tune"):
        tune_block(block, {}, {}, calls, targets, QUICK)
    with pytest.raises(ConfigError, match=r"layer 'h\.0\.up'.*bf16 has none"):
        tune_block(block, layers, {**schemes, "h.0.up": TensorScheme(dtype("bf16"))}, calls, targets, QUICK)


def test_a_weight_with_nan_is_refused_by_name():
    block, layers, calls, targets = make()
    with torch.no_grad():
        block.down.weight[0, 0] = float("nan")
    with pytest.raises(QuantizationError, match=r"layer 'h\.0\.down'.*NaN"):
        tune(TensorScheme(dtype("int4")), (block, layers, calls, targets))


class Stops(nn.Module):
    """Lets no gradient past the first layer, and never calls the last."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.idle = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.second(self.first(x).detach())


def tune_stops(*names):
    torch.manual_seed(0)
    block, x = Stops(), torch.randn(2, 4)
    layers = {name: getattr(block, name) for name in names}
    schemes = dict.fromkeys(layers, TensorScheme(dtype("int4")))
    return block, tune_block(block, layers, schemes, [((x,), {})], [block(x).detach()], QUICK)


def test_layers_that_no_gradient_reaches_keep_nearest_rounding_and_are_named(caplog):
    block, found = tune_stops("first", "second")
    assert "nearest rounding in the layers ['first']" in caplog.text
    array = found["first"].array
    nearest_codes = torch.round(block.first.weight.detach() / array.scale).clamp(-8, 7)
    assert torch.equal(array.codes.float(), nearest_codes)


def test_a_block_that_lets_no_gradient_through_is_refused():
    with pytest.raises(QuantizationError, match=r"no gradient reached the layers \['first'\]"):
        tune_stops("first")


def test_layers_that_calibration_never_reached_are_left_out_and_named(caplog):
    _, found = tune_stops("second", "idle")
    assert set(found) == {"second"}
    assert "leaves out the layers ['idle']" in caplog.text
    with pytest.raises(CalibrationError, match=r"never reached the layers \['idle'\]"):
        tune_stops("idle")
