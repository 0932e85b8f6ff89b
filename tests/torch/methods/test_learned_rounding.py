"""Learned rounding as a pass of plans, a recipe and a field of configurations."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from neural_compressor import quantization as two_x
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import ConfigError, NeuralCompressorError
from neural_compressor.schemes import OpScheme, Pass, Plan, is_pair_safe
from neural_compressor.torch.executor import CORRECT_BIASES, FOLD, USUAL_PASSES, prepare
from neural_compressor.torch.methods.learned_rounding import LearnRoundingOptions, patches
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, quantize

LEARN = Pass("learn_rounding")
KINDS = {"0": "Conv2d", "2": "Conv2d", "4": "Conv2d", "8": "Linear"}


def scheme(granularity="per_channel", weight="int4", **more):
    return OpScheme.from_dict(
        {
            "weight": {"dtype": weight, "granularity": granularity, **more},
            "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
        }
    )


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, stride=2), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.ReLU())
    head = (nn.Conv2d(8, 16, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    return nn.Sequential(*layers, *head).eval()


@pytest.fixture(scope="module")
def batches():
    draw = torch.Generator().manual_seed(1)
    mixed = [torch.rand(size, 3, 12, 12, generator=draw) for size in (8, 8, 5, 16)]
    return [x + x.mean((2, 3), keepdim=True) for x in mixed]


def quantized(net, batches, op, *passes, kinds=KINDS):
    execution = prepare(copy.deepcopy(net), Plan(dict.fromkeys(kinds.items(), op), passes=[FOLD, *passes]))
    with execution.listening(), torch.no_grad():
        for x in batches:
            execution.model(x)
    return execution.apply()


def error(net, model, batches):
    with torch.no_grad():
        return float(sum((model(x) - net(x)).square().mean() for x in batches))


def test_what_rows_are_multiplied_with():
    layers = (
        nn.Conv2d(6, 4, 3, padding=1, stride=2, groups=2),
        nn.Conv2d(4, 4, (3, 2), dilation=2, padding="same", groups=4),
        nn.Conv1d(3, 5, 3, padding_mode="reflect", padding=1),
        nn.Conv3d(2, 4, 2, groups=2),
        nn.Linear(9, 2),
    )
    for layer in layers:
        dims = layer.weight.dim() - 2
        x = torch.randn(3, 9) if isinstance(layer, nn.Linear) else torch.randn(3, layer.in_channels, *(9,) * dims)
        groups = getattr(layer, "groups", 1)
        found = patches(layer, x)
        product = found @ layer.weight.detach().reshape(groups, -1, found.shape[2]).mT
        with torch.no_grad():
            y = layer(x) - layer.bias.reshape(-1, *(1,) * dims)
        expected = y.flatten(2) if dims else y.unsqueeze(2)
        torch.testing.assert_close(product, expected.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2))
    assert patches(layers[0], torch.randn(2, 6, 40, 40), most=30).shape[1] <= 2 * 30


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_outputs_are_nearer_to_float(net, batches, granularity):
    op = scheme(granularity)
    nearest = quantized(net, batches, op, CORRECT_BIASES)
    learned = quantized(net, batches, op, LEARN, CORRECT_BIASES)
    assert error(net, learned, batches) < 0.5 * error(net, nearest, batches)
    alone = quantized(net, batches, op, LEARN)
    assert error(net, alone, batches) < error(net, nearest, batches)
    assert alone[2].bias is None, "biases are corrected where the plan says so"
    assert torch.equal(alone[0].bias, net[0].bias)
    assert learned[2].bias is not None


def test_only_the_layers_that_are_named(net, batches):
    op = scheme()
    nearest, learned = quantized(net, batches, op), quantized(net, batches, op, LEARN.with_options(ops=["2"], sweeps=1))
    assert torch.equal(nearest[0].weight, learned[0].weight)
    assert not torch.equal(nearest[2].weight, learned[2].weight)


def test_weights_for_kernels_that_add_in_pairs_stay_safe(net, batches):
    op = scheme(weight="int8", pair_safe=True)
    nearest, learned = quantized(net, batches, op), quantized(net, batches, op, LEARN)
    for name in KINDS:
        module = learned.get_submodule(name)
        assert is_pair_safe(module.weight_array().codes, module.pairs())
        assert torch.equal(module.weight_scale, nearest.get_submodule(name).weight_scale)
    assert not torch.equal(nearest[0].weight, learned[0].weight)


def test_plans_it_is_not_for_are_refused(net):
    plan = Plan({("0", "Conv2d"): scheme()}, passes=[LEARN.with_options(ops=["4"])])
    with pytest.raises(ConfigError, match=r"no static linear layer or convolution .* called '4'"):
        prepare(net, plan)
    with pytest.raises(ConfigError, match="put it behind"):
        prepare(net, Plan(plan.ops, passes=[CORRECT_BIASES, LEARN]))
    with pytest.raises(ConfigError, match="choose one"):
        prepare(net, Plan(plan.ops, passes=[LEARN, Pass("correct_weights")]))
    with pytest.raises(ConfigError, match="sweeps: got 0"):
        prepare(net, Plan(plan.ops, passes=[LEARN.with_options(sweeps=0)]))
    dynamic = OpScheme.from_dict(
        {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "dynamic"}}
    )
    with pytest.raises(ConfigError, match="no static linear layer"):
        prepare(net, Plan({("8", "Linear"): dynamic}, passes=[LEARN]))
    with pytest.raises(NeuralCompressorError, match="learned_rounding"):
        DynamicQuantConfig(learned_rounding=True)


def test_the_fronts_ask_for_the_same(net, batches):
    names = [step.name for step in with_recipes(Plan(passes=USUAL_PASSES), {"learned_rounding": True}).passes]
    assert names == ["fold", "learn_rounding", "correct_biases"]
    ours = quantize(
        copy.deepcopy(net),
        StaticQuantConfig(learned_rounding=True, act_algo="kl"),
        run_fn=lambda m: [m(x) for x in batches],
    )
    conf = PostTrainingQuantConfig(
        recipes={"learned_rounding": True},
        calibration_sampling_size=[37],
        op_type_dict={".*": {"activation": {"algorithm": ["kl"]}}},
    )
    data = [(x, torch.zeros(len(x))) for x in batches]
    theirs = two_x.fit(net, conf, calib_dataloader=data, quiet=True).model
    assert [step.name for step in ours.quantization.plan.passes] == names
    assert [step.name for step in theirs.quantization.plan.passes] == names
    assert torch.equal(ours[2].weight, theirs[2].weight)


def test_what_runs_in_another_order_in_the_float_model_is_refused():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.runs = 0

        def forward(self, x):
            y = self.first(x)
            exact = bool((y * 1000).round().equal(self.first(x + 0) * 1000)) or type(self.first) is nn.Linear
            order = (self.second, self.third) if exact else (self.third, self.second)
            return order[1](order[0](y))

    torch.manual_seed(0)
    model = Sorted().eval()
    data = [torch.randn(8, 4)]
    kinds = dict.fromkeys(("first", "second", "third"), "Linear")
    with pytest.raises(NeuralCompressorError, match="depends on values"):
        quantized(model, data, scheme(), LEARN, kinds=kinds)


def test_the_guide_has_the_options():
    guide = (Path(__file__).parents[3] / "docs" / "pytorch_int8.md").read_text()
    for name, field in LearnRoundingOptions.model_fields.items():
        assert f"| `{name}` | {field.default} | {field.description} |" in guide
