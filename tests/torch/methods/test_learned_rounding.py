"""Learned rounding as a pass of plans, a recipe and a field of configurations."""

import copy
from dataclasses import replace
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
from neural_compressor.torch.methods import learned_rounding
from neural_compressor.torch.methods.block_rounding import learn_block
from neural_compressor.torch.methods.learned_rounding import LearnRoundingOptions, patches
from neural_compressor.torch.modules.kernels import table
from neural_compressor.torch.modules.kernels.integer import INTEGER_KERNELS
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, TuningConfig, autotune, quantize

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


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(channels, 12, 1), nn.Conv2d(12, channels, 3, padding=1)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))


@pytest.fixture(scope="module")
def residual():
    torch.manual_seed(0)
    blocks = nn.Sequential(Residual(6), Residual(6))
    return nn.Sequential(nn.Conv2d(3, 6, 3), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


BLOCK = LEARN.with_options(scope="block", iters=40)
LAYERS = dict.fromkeys(("0", "1.0.wide", "1.0.narrow", "1.1.wide", "1.1.narrow"), "Conv2d") | {"4": "Linear"}


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_training_a_block_brings_it_nearer_to_its_targets(residual, batches, granularity):
    model = quantized(residual, batches, scheme(granularity, weight="int3"), kinds=LAYERS)
    block, layers = model[1][0], {"wide": model[1][0].wide, "narrow": model[1][0].narrow}
    with torch.no_grad():
        inputs = [model[0](x) for x in batches]
        targets = [residual[1][0](residual[0](x)) for x in batches]
        errors = [sum(float((block(x) - t).square().sum()) for x, t in zip(inputs, targets, strict=True))]
        calls = [((x,), {}) for x in inputs]
        before, after = learn_block(copy.deepcopy(residual[1][0]), layers, calls, targets, iters=200)
        errors.append(sum(float((block(x) - t).square().sum()) for x, t in zip(inputs, targets, strict=True)))
    count = sum(t.numel() for t in targets)
    assert errors == pytest.approx([before * count, after * count], rel=1e-3), (
        "what was trained is what the block gives"
    )
    assert after < 0.7 * before
    unchanged = [layer.weight_array().codes.clone() for layer in layers.values()]
    assert learn_block(copy.deepcopy(residual[1][0]), layers, calls, [block(x) for x in inputs], iters=3)[1] < 1e-9
    assert all(torch.equal(c, m.weight_array().codes) for c, m in zip(unchanged, layers.values(), strict=True))


def test_blocks_and_layers_outside_of_them_learn_in_the_order_they_run(residual, batches, monkeypatch):
    seen = []

    def learn(block, layers, calls, targets, iters):
        seen.append((sorted(layers), iters, torch.cat([args[0] for args, _ in calls]), torch.cat(list(targets))))
        return learn_block(block, layers, calls, targets, iters)

    monkeypatch.setattr(learned_rounding, "learn_block", learn)
    quantized(residual, batches, scheme(), BLOCK, CORRECT_BIASES, kinds=LAYERS)
    assert [(names, iters) for names, iters, _, _ in seen] == [(["narrow", "wide"], 40)] * 2
    with torch.no_grad():
        first = torch.cat([residual[0](x) for x in batches])
        torch.testing.assert_close(seen[0][3], residual[1][0](first))
        torch.testing.assert_close(seen[1][3], residual[1](first))
    assert not torch.allclose(seen[0][2], first), "inputs are those behind the layers rounded before"
    layer, block = (
        quantized(residual, batches, scheme(), BLOCK.with_options(scope=s), kinds=LAYERS) for s in ("layer", "block")
    )
    assert torch.equal(layer[0].weight, block[0].weight), "a layer outside of blocks learns alone"


def test_biases_stay_those_that_a_block_was_trained_with(residual, batches, monkeypatch):
    seen, gains = [], []

    def learn(block, layers, *more):
        errors = learn_block(block, layers, *more)
        seen.extend(layer.bias.clone() for layer in layers.values())
        gains.append(errors[0] - errors[1])
        return errors

    monkeypatch.setattr(learned_rounding, "learn_block", learn)
    signed, op = [(x - x.mean()) * 4 for x in batches], scheme("per_tensor", weight="int2")
    model = quantized(residual, signed, op, BLOCK.with_options(iters=100), CORRECT_BIASES, kinds=LAYERS)
    assert max(gains) > 0, "a block has other codes than its layers found"
    layers = [layer for block in model[1] for layer in (block.wide, block.narrow)]
    assert all(torch.equal(layer.bias, bias) for layer, bias in zip(layers, seen, strict=True))


def test_layers_of_a_model_without_blocks_learn_alone(net, batches):
    layer, block = (quantized(net, batches, scheme(), LEARN.with_options(scope=scope)) for scope in ("layer", "block"))
    assert all(torch.equal(layer.get_submodule(name).weight, block.get_submodule(name).weight) for name in KINDS)


class Writes(Residual):
    """A block that writes into its input."""

    def forward(self, x):
        x += self.narrow(torch.relu(self.wide(x)))
        return x


class Detached(Residual):
    def forward(self, x):
        return super().forward(x).detach()


class ByKeyword(Residual):
    def forward(self, x):
        return x + self.narrow(input=torch.relu(self.wide(input=x)))


def test_layers_of_a_block_may_be_called_by_keyword(residual, batches):
    model = copy.deepcopy(residual)
    for block in model[1]:
        block.__class__ = ByKeyword
    usual, named = (quantized(m, batches, scheme(weight="int3"), BLOCK, kinds=LAYERS) for m in (residual, model))
    for name in LAYERS:
        assert torch.equal(named.get_submodule(name).weight, usual.get_submodule(name).weight)


def test_blocks_that_write_into_their_input_or_have_no_gradients(residual, batches, caplog):
    def of(kind):
        model = copy.deepcopy(residual)
        for block in model[1]:
            block.__class__ = kind
        return model

    usual, writes, detached = (
        quantized(of(kind), batches, scheme(weight="int3"), BLOCK, kinds=LAYERS)
        for kind in (Residual, Writes, Detached)
    )
    layer = quantized(residual, batches, scheme(weight="int3"), LEARN.with_options(scope="layer"), kinds=LAYERS)
    for name in LAYERS:
        assert torch.equal(writes.get_submodule(name).weight, usual.get_submodule(name).weight)
        assert torch.equal(detached.get_submodule(name).weight, layer.get_submodule(name).weight)
    assert "no gradient comes through Detached" in caplog.text


def test_blocks_stay_safe_in_pairs(residual, batches):
    op = scheme(weight="int8", pair_safe=True)
    learned = quantized(residual, batches, op, BLOCK.with_options(iters=10), kinds=LAYERS)
    for name in LAYERS:
        module = learned.get_submodule(name)
        assert is_pair_safe(module.weight_array().codes, module.pairs())


def test_the_float_model_is_left_as_it_is(residual, batches):
    model = copy.deepcopy(residual)
    execution = prepare(model, Plan(dict.fromkeys(LAYERS.items(), scheme()), passes=[FOLD, BLOCK]), keeps_floats=True)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    shared = dict(model.named_parameters())
    with execution.listening(), torch.no_grad():
        for x in batches:
            execution.model(x)
    execution.apply()
    assert all(torch.equal(shared[name], value) and shared[name].grad is None for name, value in kept.items())


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
    with pytest.raises(ConfigError, match="'layer' or 'block'"):
        with_recipes(plan, {"learned_rounding": "blocks"})
    with pytest.raises(ConfigError, match="'layer' or 'block'"):
        StaticQuantConfig(learned_rounding="blocks")
    with pytest.raises(NeuralCompressorError, match="learned_rounding"):
        DynamicQuantConfig(learned_rounding=True)


@pytest.mark.parametrize("scope", [True, "block"])
def test_the_fronts_ask_for_the_same(net, batches, scope):
    names = [step.name for step in with_recipes(Plan(passes=USUAL_PASSES), {"learned_rounding": scope}).passes]
    assert names == ["fold", "learn_rounding", "correct_biases"]
    ours = quantize(
        copy.deepcopy(net),
        StaticQuantConfig(learned_rounding=scope, act_algo="kl"),
        run_fn=lambda m: [m(x) for x in batches],
    )
    conf = PostTrainingQuantConfig(
        recipes={"learned_rounding": scope},
        calibration_sampling_size=[37],
        op_type_dict={".*": {"activation": {"algorithm": ["kl"]}}},
    )
    data = [(x, torch.zeros(len(x))) for x in batches]
    theirs = two_x.fit(net, conf, calib_dataloader=data, quiet=True).model
    assert [step.name for step in ours.quantization.plan.passes] == names
    assert [step.name for step in theirs.quantization.plan.passes] == names
    tuned = autotune(
        copy.deepcopy(net),
        TuningConfig([StaticQuantConfig(learned_rounding=scope, act_algo="kl")]),
        eval_fn=lambda m: float(m(batches[0]).detach().mean()),
        run_fn=lambda m: [m(x) for x in batches],
    )
    assert torch.equal(ours[2].weight, tuned[2].weight)
    assert torch.equal(ours[2].weight, theirs[2].weight)


RECIPES = {
    "not bias": ({"fast_bias_correction": False}, ["bias"]),
    "weight": ({"weight_correction": True}, ["weight_scale"]),
    "equalized": ({"equalization": True, "learned_rounding": True}, ["weight", "weight_scale"]),
    "searched": ({"range_search": True, "learned_rounding": "block"}, ["weight", "input_scale"]),
}
"""With what each of them changes of layers."""


@pytest.mark.parametrize(("recipes", "acts"), RECIPES.values(), ids=RECIPES)
def test_recipes_of_fit_leave_weights_safe_where_kernels_add_in_pairs(
    residual, batches, recipes, acts, monkeypatch, tmp_path
):
    found = [replace(k, exact=lambda kind, act, codes: codes != "all") for k in INTEGER_KERNELS[:-1]]
    monkeypatch.setattr(table, "KERNELS", [*found, INTEGER_KERNELS[-1]])
    data = [(x, torch.zeros(len(x))) for x in batches]

    def fit(recipes):
        conf = PostTrainingQuantConfig(recipes=recipes, calibration_sampling_size=[37])
        return two_x.fit(
            residual, conf, calib_dataloader=data, quiet=True, workspace=str(tmp_path / str(recipes))
        ).model

    model, plain = fit(recipes), fit({})
    layers = {name: model.get_submodule(name) for name in LAYERS}
    assert all(layer.weight_scheme.pair_safe for layer in layers.values())
    assert all(is_pair_safe(layer.weight_array().codes, layer.pairs()) for layer in layers.values())
    for what in acts:
        pairs = [(getattr(layer, what), getattr(plain.get_submodule(name), what)) for name, layer in layers.items()]
        assert any(not torch.equal(one, other) for one, other in pairs), f"the recipe changes {what}"


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


@pytest.mark.parametrize("scope", ["layer", "block"])
def test_what_does_not_run_in_the_quantized_model_is_refused(scope):
    class Shortened(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))

        def forward(self, x):
            x = self.layers[0](x)
            return self.layers[1](x) if type(self.layers[0][0]) is nn.Linear else x

    kinds = {f"layers.{block}.{layer}": "Linear" for block in range(2) for layer in range(2)}
    with pytest.raises(NeuralCompressorError, match=r"comes to the end where the float one comes to 'layers\.1"):
        quantized(Shortened().eval(), [torch.randn(8, 4)], scheme(), LEARN.with_options(scope=scope), kinds=kinds)


def test_the_guide_has_the_options():
    guide = (Path(__file__).parents[3] / "docs" / "pytorch_int8.md").read_text()
    for name, field in LearnRoundingOptions.model_fields.items():
        assert f"| `{name}` | {field.default} | {field.description} |" in guide


@pytest.mark.parametrize("scope", ["layer", "block"])
def test_encoders_that_torch_runs_as_one_operator_learn_layer_by_layer(scope):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(8, 5, 16)
    new = quantize(copy.deepcopy(model), StaticQuantConfig(learned_rounding=scope), run_fn=lambda m: m(x), quiet=True)
    with torch.no_grad():
        expected = model(x)
        assert (new(x) - expected).norm() < 0.05 * expected.norm()
    assert torch.backends.mha.get_fastpath_enabled()
