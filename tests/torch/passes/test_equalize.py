"""Equalization across layers: the float model stays what it is, and one scale for all channels is enough."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan, sqnr_db
from neural_compressor.torch.executor import FOLD, prepare
from neural_compressor.torch.passes.model_pass import PassState, read_pass
from neural_compressor.torch.passes.survey import Survey

PER_TENSOR = OpScheme.from_dict(
    {
        "weight": {"dtype": "int8", "granularity": "per_tensor"},
        "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
    }
)


def uneven(activation, shared=False):
    """Three convolutions in a row, the one in the middle depthwise, with channels of very different size.

    An activation is behind each, or one behind both.
    """
    torch.manual_seed(0)
    if shared:
        one = activation()
        return uneven(lambda: one)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1), activation(), nn.Conv2d(8, 8, 3, groups=8, padding=1), activation(), nn.Conv2d(8, 4, 1)
    ).eval()
    factor = torch.logspace(-2, 1, 8)
    with torch.no_grad():
        for first, second, along in ((net[0], net[2], 0), (net[2], net[4], 1)):
            first.weight *= factor.reshape(-1, 1, 1, 1)
            first.bias *= factor
            shape = (-1, 1, 1, 1) if along == 0 else (1, -1, 1, 1)
            second.weight /= factor.reshape(shape)
    return net


@pytest.fixture
def batches():
    return [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def plan_of(net, passes=()):
    kinds = (nn.Conv2d, nn.Linear)
    ops = {(n, type(m).__name__): PER_TENSOR for n, m in net.named_modules() if isinstance(m, kinds)}
    return Plan(ops, passes=passes)


def equalized(net, batches, **options):
    model, survey = copy.deepcopy(net), Survey(net)
    for x in batches:
        survey.see(x)
    state = PassState(model, plan_of(net), survey, calls=[((x,), {}) for x in batches])
    read_pass(Pass("equalize", options)).before(state)
    return model


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Identity], ids=lambda kind: kind.__name__)
def test_the_float_model_computes_what_it_did(activation, batches):
    net = uneven(activation)
    model = equalized(net, batches)
    with torch.no_grad():
        for x in batches:
            torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-4)
    assert not torch.equal(model[0].weight, net[0].weight)
    # of the weights of a channel the largest that make it and the largest that read it are the same in the end
    if activation is not nn.ReLU6:
        first = model[0].weight.detach().flatten(1).abs().amax(1)
        second = model[2].weight.detach().flatten(1).abs().amax(1)
        torch.testing.assert_close(first, second, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("shared", [False, True])
def test_what_relu6_cuts_off_keeps_its_scale(batches, shared):
    net = uneven(nn.ReLU6, shared)
    with torch.no_grad():
        net[0].weight[3] *= 100  # beyond 6 on the data
        seen = torch.cat([net[0](x) for x in batches]).movedim(1, -1).flatten(0, -2).amax(0)
    assert seen[3] > 6
    model = equalized(net, batches)
    for layer in (0, 2):
        assert not torch.equal(model[layer].weight, net[layer].weight)
    torch.testing.assert_close(model[0].weight[3], net[0].weight[3])
    with torch.no_grad():
        given = torch.cat([model[0](x) for x in batches]).movedim(1, -1).flatten(0, -2).amax(0)
        free = seen <= 6
        assert given[free].max() <= 6
        for x in batches:
            torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-4)


def test_a_value_that_two_read_is_scaled_for_both_or_not_at_all(batches):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            y = torch.relu(self.first(x))
            return self.left(y) + self.right(y)

    torch.manual_seed(0)
    net = Two().eval()
    model = equalized(net, batches)
    with torch.no_grad():
        torch.testing.assert_close(model(batches[0]), net(batches[0]), rtol=1e-4, atol=1e-4)
    assert not torch.equal(model.left.weight, net.left.weight)
    assert not torch.equal(model.right.weight, net.right.weight)


def test_one_scale_for_all_channels_loses_far_less(batches):
    net, found = uneven(nn.ReLU), []
    for passes in ([FOLD], [FOLD, Pass("equalize")]):
        execution = prepare(copy.deepcopy(net), plan_of(net, passes))
        with execution.listening(), torch.no_grad():
            for x in batches:
                execution.model(x)
        quantized = execution.apply()
        with torch.no_grad():
            found.append(sqnr_db(net(batches[0]), quantized(batches[0])))
    assert found[1] > found[0] + 10


def test_what_makes_no_sense_is_refused():
    net = uneven(nn.ReLU)
    for step, said in (
        (Pass("equalize", {"rounds": 0}), "equalize.rounds"),
        (Pass("equalize", {"ops": ["9"]}), "no op '9'"),
        (Pass("equalize", {"ops": ["0"]}), "two convolutions"),
    ):
        with pytest.raises(ConfigError, match=said):
            prepare(copy.deepcopy(net), plan_of(net, [step]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_in_half_precision_are_equalized(dtype, batches):
    net, halves = uneven(nn.ReLU).to(dtype), [x.to(dtype) for x in batches]
    model = equalized(net, halves)
    assert not torch.equal(model[0].weight, net[0].weight)
    assert model[0].weight.dtype == dtype
    with torch.no_grad():
        assert sqnr_db(net(halves[0]).float(), model(halves[0]).float()) > 30


class Branching(nn.Module):
    """A forward with a condition, at which the value between its layers goes ``apart`` on other data or not."""

    def __init__(self, apart):
        super().__init__()
        self.apart, self.first, self.second = apart, nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        y = torch.relu(self.first(x))
        if x.shape[0] > 64:
            if self.apart:
                return self.second(y) + y.mean()
            x = x[:64]
        return self.second(y) + x.mean()


@pytest.mark.parametrize("apart", [False, True])
def test_a_condition_stands_in_the_way_where_what_is_between_layers_depends_on_it(apart, batches):
    torch.manual_seed(0)
    net = Branching(apart).eval()
    model = equalized(net, batches)
    assert torch.equal(model.first.weight, net.first.weight) == apart
