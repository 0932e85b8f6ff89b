"""Ranges of activations searched by their effect on the output of the model."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor import quantization as two_x
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan
from neural_compressor.torch.executor import CORRECT_BIASES, FOLD, USUAL_PASSES, prepare
from neural_compressor.torch.quantization import StaticQuantConfig, quantize

SEARCH = Pass("search_ranges")


def op(**activation):
    given = {"dtype": "uint8", "scheme": "asym", "quant_mode": "static", **activation}
    return OpScheme.from_dict({"weight": {"dtype": "int8", "granularity": "per_channel"}, "activation": given})


class Net(nn.Module):
    """What ``second`` reads is large in one channel, whose weights are next to nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.weight[0] *= 50
            self.second.weight[:, 0] *= 1e-4

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.third((y + self.second(input=y)).mean((2, 3)))


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture(scope="module")
def batches():
    draw = torch.Generator().manual_seed(1)
    return [torch.rand(size, 3, 10, 10, generator=draw) for size in (8, 5, 16)]


KINDS = {("first", "Conv2d"): op(), ("second", "Conv2d"): op(), ("third", "Linear"): op()}


def quantized(net, batches, *passes, kinds=None):
    execution = prepare(copy.deepcopy(net), Plan(kinds or KINDS, passes=[FOLD, *passes]))
    with execution.listening(), torch.no_grad():
        for x in batches:
            execution.model(x)
    return execution.apply()


def test_a_range_is_as_wide_as_the_output_needs(net, batches):
    plain, searched = quantized(net, batches), quantized(net, batches, SEARCH)
    assert searched.second.input_scale < 0.5 * plain.second.input_scale, "the large channel is not what matters"
    assert searched.third.input_scale >= 0.7 * plain.third.input_scale

    def error(model):
        with torch.no_grad():
            return float(sum((model(x) - net(x)).square().mean() for x in batches))

    assert error(searched) < error(plain)
    assert torch.equal(searched.second.weight, plain.second.weight)


def test_the_error_of_each_range_is_that_of_a_brute_force(batches):
    """One layer: what is chosen is what errs least in the output, among the same shares of the range."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(6, 1))
    with torch.no_grad():
        layer[0].weight[0, 0] = 1e-3
    x = torch.randn(32, 6)
    x[:, 0] *= 20
    model = quantized(layer, [x], SEARCH, kinds={("0", "Linear"): op()})
    low, high = float(x.min()), float(x.max())

    def cost(share):
        scale = (high - low) * share / 255
        zero = round(-low * share / scale)
        rounded = torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)
        with torch.no_grad():
            return float((layer(rounded) - layer(x)).square().sum())

    best = min((1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), key=cost)
    assert float(model[0].input_scale) == pytest.approx((high - low) * best / 255, rel=1e-4)


def test_only_the_ops_that_are_named(net, batches):
    plain, some = quantized(net, batches), quantized(net, batches, SEARCH.with_options(ops=["third"]))
    assert torch.equal(plain.second.input_scale, some.second.input_scale)


def test_weights_are_corrected_for_the_new_ranges(net, batches):
    one, other = (quantized(net, batches, *passes, CORRECT_BIASES) for passes in ((), (SEARCH,)))
    assert not torch.equal(one.second.bias, other.second.bias)


def test_plans_it_is_not_for_are_refused(net, batches):
    with pytest.raises(ConfigError, match="no static op in integers called 'fourth'"):
        prepare(net, Plan(KINDS, passes=[SEARCH.with_options(ops=["fourth"])]))
    with pytest.raises(ConfigError, match="put it behind"):
        prepare(net, Plan(KINDS, passes=[CORRECT_BIASES, SEARCH]))
    dynamic = OpScheme.from_dict(
        {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "dynamic"}}
    )
    with pytest.raises(ConfigError, match="no static op in integers"):
        prepare(net, Plan({("third", "Linear"): dynamic}, passes=[SEARCH]))

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            return self.inner(x).argmax(1)

    with pytest.raises(CalibrationError, match="no gradient"):
        quantized(Chosen().eval(), [torch.randn(8, 4)], SEARCH, kinds={("inner", "Linear"): op()})


def test_the_fronts_ask_for_the_same(net, batches, tmp_path):
    names = [step.name for step in with_recipes(Plan(passes=USUAL_PASSES), {"range_search": True}).passes]
    assert names == ["fold", "search_ranges", "correct_biases"]
    ours = quantize(
        copy.deepcopy(net),
        StaticQuantConfig(range_search=True, act_algo="kl"),
        run_fn=lambda m: [m(x) for x in batches],
    )
    conf = PostTrainingQuantConfig(
        recipes={"range_search": True},
        calibration_sampling_size=[29],
        op_type_dict={".*": {"activation": {"algorithm": ["kl"]}}},
    )
    data = [(x, torch.zeros(len(x))) for x in batches]
    theirs = two_x.fit(net, conf, calib_dataloader=data, quiet=True, workspace=str(tmp_path)).model
    assert [step.name for step in ours.quantization.plan.passes] == names
    assert [step.name for step in theirs.quantization.plan.passes] == names
    assert torch.equal(ours.second.input_scale, theirs.second.input_scale)
