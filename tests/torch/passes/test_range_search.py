"""Ranges of activations searched by their effect on the output of the model."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor import quantization as two_x
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError
from neural_compressor.schemes import OpScheme, Pass, Plan
from neural_compressor.torch import functional
from neural_compressor.torch.executor import CORRECT_BIASES, FOLD, USUAL_PASSES, prepare
from neural_compressor.torch.quantization import SmoothQuantConfig, StaticQuantConfig, quantize
from neural_compressor.torch.quantization.plans import plan_for

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


def test_what_few_values_do_is_not_left_to_chance():
    """A range clips one value of 64 or so, and in most directions of the outputs, but not in all, that is seen."""
    for seed in range(40):
        torch.manual_seed(seed)
        layer, x = nn.Sequential(nn.Linear(16, 8)), torch.randn(4, 16)
        errors = []
        for steps in ((), (SEARCH,)):
            found = quantized(layer, [x], *steps, kinds={("0", "Linear"): op()})[0]
            scale, zero = float(found.input_scale), int(found.input_zero_point)
            rounded = torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)
            with torch.no_grad():
                errors.append(float((layer(rounded) - layer(x)).square().sum()))
        assert errors[1] <= 1.5 * errors[0], seed


class InPlace(Net):
    """A residual block as many models write it."""

    def forward(self, x):
        y = torch.relu_(self.first(x))
        z = self.second(y)
        z += y
        return self.third(z.relu_().mean((2, 3)))


class Apart(Net):
    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.third(torch.relu(self.second(y) + y).mean((2, 3)))


def test_what_is_written_into_has_the_range_it_had_before(batches):
    ranges = []
    for net in (InPlace().eval(), Apart().eval()):
        net.second.bias.data -= 1
        model = quantized(net, batches, SEARCH)
        assert float(model.second.output_zero_point) > 50
        ranges.append([float(layer.input_scale) for layer in model.children()] + [float(model.second.output_scale)])
    assert ranges[0] == pytest.approx(ranges[1])


def test_only_the_ops_that_are_named(net, batches):
    plain = quantized(net, batches)
    others, second = (quantized(net, batches, SEARCH.with_options(ops=ops)) for ops in (["first", "third"], ["second"]))
    assert torch.equal(plain.second.input_scale, others.second.input_scale)
    assert not torch.equal(plain.second.input_scale, second.second.input_scale)


class Product(nn.Module):
    def __init__(self, b):
        super().__init__()
        self.product, self.b = functional.MatMul(), nn.Parameter(b)

    def forward(self, x):
        return self.product(x, self.b)


def test_each_operand_of_a_product_is_summed_over_the_axis_that_it_sums():
    """Errors of ``b`` that make up for each other along its columns cost nothing, those along its rows do."""
    torch.manual_seed(0)
    b, x = torch.randn(8, 64), torch.ones(16, 8)
    b[0], b[1] = 10, -10  # both are clipped, and what that does to the sum of a column is next to nothing
    kinds = {("product", "MatMul"): OpScheme.from_dict({"activation": op().to_dict()["activation"]})}
    plain, model = (quantized(Product(b), [x], *passes, kinds=kinds) for passes in ((), (SEARCH,)))
    low, high = float(b.min()), float(b.max())

    def cost(share):
        scale = (high - low) * share / 255
        rounded = torch.fake_quantize_per_tensor_affine(b, scale, round(-low * share / scale), 0, 255)
        return float((rounded - b).sum(0).square().sum())

    best = min((1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), key=cost)
    assert best < 0.9, "clipping along the rows would cost much"
    assert float(model.product.b_scale) == pytest.approx((high - low) * best / 255, rel=1e-4)
    assert float(model.product.b_scale) != pytest.approx(float(plain.product.b_scale), rel=1e-4)
    vector = quantized(Product(b[:, 0].clone()), [x], SEARCH, kinds=kinds)
    assert float(vector.product.b_scale) > 0


class Branches(nn.Module):
    """An addition, an expert that some samples go to, and layers that no gradient or no sample comes to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.expert, self.gate, self.idle = (nn.Linear(4, 4) for _ in range(4))
        self.add = functional.Add()

    def forward(self, x):
        y = self.first(x)
        chosen = self.gate(x).argmax(1) * 0 + (x[:, 0] > 100)
        seen = self.expert(y[chosen == 1])
        if len(x) > 50:
            y = self.idle(y)
        return torch.cat([self.add(y, x), seen])


def test_what_keeps_its_range_is_said(caplog):
    x = torch.randn(8, 4)
    x[1, 0] = 101.0  # of the first four samples that run at once, and of no others
    alone = OpScheme.from_dict({"activation": op().to_dict()["activation"]})
    layers = dict.fromkeys([(name, "Linear") for name in ("first", "expert", "gate", "idle")], op())
    kinds = {**layers, ("add", "Add"): alone}
    with caplog.at_level("INFO", logger="neural_compressor"):
        searched = quantized(Branches().eval(), [x, torch.randn(51, 4)], SEARCH, kinds=kinds)
    plain = quantized(Branches().eval(), [x, torch.randn(51, 4)], kinds=kinds)
    assert torch.equal(searched.add.a_scale, plain.add.a_scale)
    assert "ranges of add stay as they are: they sum over no channels" in caplog.text
    assert "ranges of input of 'gate' stay as they are: no gradient comes there" in caplog.text
    assert "ranges of input of 'idle' stay as they are: none of the samples came there" in caplog.text
    with pytest.raises(ConfigError, match=r"no static op in integers that sums .* called 'add'"):
        prepare(Branches(), Plan(kinds, passes=[SEARCH.with_options(ops=["add"])]))


def test_that_nothing_is_searched_is_a_warning(caplog):
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(8, 8)
    config = SmoothQuantConfig(range_search=True)  # each layer multiplies its input
    quantize(net, config, run_fn=lambda m: m(x), quiet=True)
    assert "search_ranges changes nothing" in caplog.text


def test_a_range_without_end_names_its_op():
    class Once(nn.Module):
        """Infinite where gradients are asked for: what calibration saw was finite."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(x / 0 if len(x) == 4 else x)

    with pytest.raises(NeuralCompressorError, match="the calibrated range of input of 'inner' is"):
        quantized(Once().eval(), [torch.rand(8, 3)], SEARCH, kinds={("inner", "Linear"): op()})


def test_rules_for_some_ops_give_passes_in_order_for_the_ops_they_can_serve():
    class Texts(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.first, self.second = nn.Embedding(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.second(torch.relu(self.first(self.rows(x))))

    learned, both = (
        StaticQuantConfig(learned_rounding=True),
        StaticQuantConfig(range_search=True, learned_rounding=True),
    )
    plan, _ = plan_for(Texts(), StaticQuantConfig(range_search=True).set_local("first", learned))
    found = {step.name: step.options.get("ops") for step in plan.passes}
    assert found == {"fold": None, "search_ranges": ["second"], "learn_rounding": ["first"], "correct_biases": None}
    assert list(found) == ["fold", "search_ranges", "learn_rounding", "correct_biases"]
    plan, _ = plan_for(Texts(), StaticQuantConfig().set_local("first", learned).set_local("second", both))
    assert [step.name for step in plan.passes] == ["fold", "search_ranges", "learn_rounding", "correct_biases"]
    plan, _ = plan_for(Texts(), both)
    assert all("ops" not in step.options for step in plan.passes)
    with pytest.raises(ConfigError, match="called 'rows'"):
        plan_for(Texts(), StaticQuantConfig().set_local("rows", learned))


def test_weights_are_corrected_for_the_new_ranges(net, batches):
    one, other = (quantized(net, batches, *passes, CORRECT_BIASES) for passes in ((), (SEARCH,)))
    assert not torch.equal(one.second.bias, other.second.bias)


def test_plans_it_is_not_for_are_refused(net, batches):
    with pytest.raises(ConfigError, match=r"no static op in integers .* called 'fourth'"):
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

    class Overwritten(Chosen):
        def forward(self, x):
            y = self.inner(x).sigmoid()
            return y.mul_(2)

    with pytest.raises(CalibrationError, match=r"has no gradients: .*inplace operation"):
        quantized(Overwritten().eval(), [torch.randn(8, 4)], SEARCH, kinds={("inner", "Linear"): op()})


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
