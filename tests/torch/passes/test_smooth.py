"""SmoothQuant: the float model stays what it is, and int8 loses less where channels of activations stand out."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor import quantization as two_x
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan, float_op, sqnr_db
from neural_compressor.torch.executor import FOLD, prepare
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.passes.model_pass import PassState, read_pass
from neural_compressor.torch.passes.smooth import SmoothOptions
from neural_compressor.torch.passes.survey import Survey
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    FP8Config,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    load,
    quantize,
)

WIDTH, OUTLIERS = 64, (3, 17, 40)
STATIC = {
    "weight": {"dtype": "int8", "granularity": "per_channel"},
    "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
}
DYNAMIC = {**STATIC, "activation": {**STATIC["activation"], "quant_mode": "dynamic"}}
FP8 = {"weight": {"dtype": "fp8_e4m3"}, "activation": {"dtype": "fp8_e4m3", "quant_mode": "static"}}


class Block(nn.Module):
    """As in a transformer: two layers read one normalisation, whose gain makes some channels large."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)
        with torch.no_grad():
            self.norm.weight[list(OUTLIERS)] *= 60

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(torch.relu(self.gate(y)) * torch.sigmoid(self.up(y)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.fc2(self.act(self.fc1(x)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def batches():
    return [torch.randn(16, 5, WIDTH, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def run(batches):
    return lambda model: [model(x) for x in batches]


def decibels(net, quantized, batches):
    x = torch.cat(batches)
    with torch.no_grad():
        return sqnr_db(net(x), quantized(x))


def smoothed(net, batches, scheme=STATIC, **options):
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    plan = Plan(
        {(name, "Linear"): OpScheme.from_dict(scheme) for name in names}, passes=[FOLD, Pass("smooth", options)]
    )
    execution = prepare(copy.deepcopy(net), plan)
    with execution.listening(), torch.no_grad():
        run(batches)(execution.model)
    return execution.apply()


@pytest.mark.parametrize("options", [{}, {"folding": True}, {"scale_sharing": True}, {"alpha": "auto"}], ids=str)
def test_smoothed_int8_is_several_decibels_better(net, batches, options):
    plain = quantize(copy.deepcopy(net), StaticQuantConfig(), run(batches), quiet=True)
    found = quantize(copy.deepcopy(net), SmoothQuantConfig(**options), run(batches), quiet=True)
    assert decibels(net, found, batches) > decibels(net, plain, batches) + 6


@pytest.mark.parametrize("more", [{}, {"do_blockwise": True}, {"scale_sharing": True}], ids=str)
def test_auto_is_at_least_as_good_as_a_half(net, batches, more):
    half = smoothed(net, batches, alpha=0.5, **{k: v for k, v in more.items() if k != "do_blockwise"})
    auto = smoothed(net, batches, alpha="auto", **more)
    others = [torch.randn(64, 5, WIDTH, generator=torch.Generator().manual_seed(50 + i)) for i in range(4)]
    assert decibels(net, auto, others) >= decibels(net, half, others) - 0.75


def test_auto_does_not_fit_a_few_rows():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    tails = torch.distributions.StudentT(4.0)
    rows, others = [tails.sample((100, 32))], [tails.sample((1000, 32))]
    plain, half, auto = (
        decibels(net, quantize(copy.deepcopy(net), config, run(rows), quiet=True), others)
        for config in (StaticQuantConfig(), SmoothQuantConfig(), SmoothQuantConfig(alpha="auto"))
    )
    assert plain > half + 1, "such data is not smoothed"
    assert auto > half


def test_a_call_whose_samples_are_not_counted_by_rows_is_not_parted(caplog):
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, texts, images):
            return self.head(torch.relu(self.fc(texts)) + self.fc(images).unflatten(0, (len(texts), 2)).sum(1))

    torch.manual_seed(0)
    data = torch.randn(4, 16), torch.randn(8, 16)
    found = quantize(Pairs(), SmoothQuantConfig(alpha="auto"), lambda model: model(*data), quiet=True)
    assert "cannot be parted" in caplog.text
    assert found.head.input_multiplier is not None


def test_one_sample_chooses_nothing(net, batches, caplog):
    found = smoothed(net, [batches[0][:1]], alpha="auto")
    half = smoothed(net, [batches[0][:1]], alpha=0.5)
    assert torch.equal(found.fc1.input_multiplier, half.fc1.input_multiplier)
    assert "one sample" in caplog.text


def test_auto_stays_between_what_it_is_given():
    assert SmoothOptions(alpha="auto", alpha_max=0.2).alphas() == (0.2, 0.0, 0.1)
    assert SmoothOptions(alpha="auto", alpha_min=0.8, init_alpha=0.95).alphas() == (0.95, 0.8, 0.9, 1.0)


@pytest.mark.parametrize("folding", [True, False])
def test_the_float_model_computes_what_it_did(net, batches, folding):
    model, survey = copy.deepcopy(net), Survey(net)
    for x in batches:
        survey.see(x)
    ops = {(n, "Linear"): OpScheme.from_dict(STATIC) for n, m in net.named_modules() if isinstance(m, nn.Linear)}
    step = read_pass(Pass("smooth", {"folding": folding, "alpha": 0.7}))
    state = PassState(model, Plan(ops), survey, calls=[((x,), {}) for x in batches])
    step.before(state)
    with torch.no_grad():
        torch.testing.assert_close(model(batches[0]), net(batches[0]), rtol=1e-4, atol=1e-4)
    # gate and up read a norm, fc2 reads fc1 behind a ReLU; down reads a product, and fc1 a sum
    unfolded = {"blocks.0.down", "blocks.1.down", "fc1"}
    assert set(state.changes) == (unfolded if folding else {name for name, _ in ops})
    moved = not torch.equal(model.blocks[0].norm.weight, net.blocks[0].norm.weight)
    assert moved == folding
    if folding:
        # by hand, Xiao et al. equation 4: x^alpha / w^(1 - alpha)
        with torch.no_grad():
            given = torch.cat([net.blocks[0].norm(x).flatten(0, 1) for x in batches]).abs().amax(0)
            both = torch.stack([net.blocks[0].gate.weight, net.blocks[0].up.weight]).abs().amax((0, 1))
        scale = given**0.7 / both**0.3
        torch.testing.assert_close(net.blocks[0].norm.weight / model.blocks[0].norm.weight, scale, rtol=1e-4, atol=0)
        torch.testing.assert_close(model.blocks[0].up.weight, net.blocks[0].up.weight * scale, rtol=1e-4, atol=1e-6)
        # what was smoothed is not written into the weights that others hold
        assert survey.model.blocks[0].up.weight is net.blocks[0].up.weight


def test_a_convolution_takes_the_scale_of_the_next_one_up():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU6(),
        nn.Conv2d(8, 4, 1),
    ).eval()  # fmt: skip
    with torch.no_grad():
        net[1].weight[2] *= 30
        net[4].weight[:, 2] /= 30
    batches = [torch.randn(4, 3, 16, 16) for _ in range(3)]
    plan = Plan(
        {(n, "Conv2d"): OpScheme.from_dict(STATIC) for n in "046"},
        passes=[FOLD, Pass("smooth", {"folding": True, "op_types": ["Conv2d"]})],
    )
    found = []
    for passes in (plan.passes, plan.passes[:1]):
        execution = prepare(copy.deepcopy(net), Plan(plan.ops, passes=passes))
        with execution.listening(), torch.no_grad():
            run(batches)(execution.model)
        found.append(execution.apply())
    assert found[0][4].input_multiplier is None
    assert found[0][6].input_multiplier is not None  # what ReLU6 gives cannot be scaled in front of it
    assert decibels(net, found[0], batches) > decibels(net, found[1], batches) + 3


def in_a_row(act):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), act, nn.Linear(WIDTH, WIDTH), act, nn.Linear(WIDTH, 8)).eval()
    with torch.no_grad():
        net[0].bias[:8] -= 0.6  # channels that hardly ever get through
    return net


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1)], ids=["relu", "leaky"])
def test_folding_costs_nothing_whatever_the_scales_of_the_layer_before(act, granularity, batches):
    net = in_a_row(act)
    found, kept = (
        quantize(
            copy.deepcopy(net),
            SmoothQuantConfig(alpha=0.9, folding=folding, w_granularity=granularity),
            run(batches),
            quiet=True,
        )
        for folding in (True, False)
    )
    assert (found[2].input_multiplier is None) == (granularity == "per_channel")
    assert decibels(net, found, batches) > decibels(net, kept, batches) - 0.5


def watched(model, batches, **options):
    """The model with scales in the layers before, and what is left to multiply."""
    survey = Survey(model)
    for x in batches:
        survey.see(x)
    ops = {(n, "Linear"): OpScheme.from_dict(STATIC) for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    state = PassState(model, Plan(ops), survey, calls=[((x,), {}) for x in batches])
    read_pass(Pass("smooth", {"folding": True, **options})).before(state)
    return state


class Branching(nn.Module):
    """What the first layer gives is read once more where ``when`` says so of the input."""

    def __init__(self, when):
        super().__init__()
        self.a, self.b, self.when = nn.Linear(16, 16), nn.Linear(16, 16), when

    def forward(self, x):
        y = self.a(x)
        return self.b(torch.relu(y) if self.when(x) else nn.functional.gelu(y))


@pytest.mark.parametrize(
    "when",
    [lambda x: x.shape[0] < 9, lambda x: not bool((x > 5).any()), lambda x: len(x) > 1],
    ids=["more samples", "values", "one sample"],
)
def test_a_branch_that_the_data_did_not_take_is_looked_for(when):
    torch.manual_seed(0)
    model = Branching(when).eval()
    others = [torch.randn(n, 16) * k for n, k in ((4, 1), (12, 1), (1, 1), (4, 9))]
    expected = [model(x).detach() for x in others]
    state = watched(model, [torch.randn(4, 16).clamp(-2, 2) for _ in range(2)])
    assert set(state.changes) == {"a", "b"}
    for x, y in zip(others, expected, strict=True):
        torch.testing.assert_close(model(x), y, rtol=1e-5, atol=1e-6)


def test_scales_cancel_in_float64(net, batches):
    model, data = net.double(), [x.double() for x in batches]
    expected = model(data[0]).detach()
    watched(model, data, alpha=0.7)
    torch.testing.assert_close(model(data[0]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scheme", [DYNAMIC, FP8], ids=["dynamic", "fp8"])
def test_other_schemes_are_smoothed_too(net, batches, scheme):
    found = smoothed(net, batches, scheme)
    assert found.fc1.input_multiplier is not None
    if scheme is DYNAMIC:
        plain = quantize(copy.deepcopy(net), DynamicQuantConfig(w_granularity="per_channel"), quiet=True)
        assert decibels(net, found, batches) > decibels(net, plain, batches) + 6
    else:  # a float has the same relative error whatever its size
        plain = quantize(copy.deepcopy(net), FP8Config(), run(batches), quiet=True)
        assert decibels(net, found, batches) > decibels(net, plain, batches) - 1


def test_a_smoothed_model_is_saved_and_loaded(net, batches, tmp_path):
    found = quantize(copy.deepcopy(net), SmoothQuantConfig(), run(batches), quiet=True)
    found.save(str(tmp_path))
    again = load(str(tmp_path), original_model=copy.deepcopy(net))
    with torch.no_grad():
        assert torch.equal(found(batches[0]), again(batches[0]))


def test_the_recipe_of_2x_is_the_same(net, batches, tmp_path):
    recipes = {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.5, "folding": True}}
    conf = PostTrainingQuantConfig(recipes=recipes, calibration_sampling_size=[64])
    loader = [(x, 0) for x in batches]
    fitted = two_x.fit(net, conf, calib_dataloader=loader, quiet=True, workspace=str(tmp_path)).model
    expected = quantize(copy.deepcopy(net), SmoothQuantConfig(folding=True), run(batches), quiet=True)
    smoothing = [step for step in fitted.quantization.plan.passes if step.name == "smooth"]
    assert smoothing == [Pass("smooth", {"alpha": 0.5, "folding": True})]
    assert fitted.blocks[0].norm.weight.equal(expected.blocks[0].norm.weight)
    assert decibels(expected, fitted, batches) > 40


def test_layers_have_what_their_configuration_says(net, batches):
    config = SmoothQuantConfig(alpha=0.5).set_local("fc1", SmoothQuantConfig(alpha=0.9)).set_local(
        "fc2", StaticQuantConfig()
    )  # fmt: skip
    found = quantize(copy.deepcopy(net), config, run(batches), quiet=True)
    assert found.fc2.input_multiplier is None
    with torch.no_grad():
        x = torch.cat(batches)
        for block in net.blocks:
            x = block(x)
        given, reach = x.flatten(0, -2).abs().amax(0), net.fc1.weight.abs().amax(0)
    torch.testing.assert_close(1 / found.fc1.input_multiplier, given**0.9 / reach**0.1, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": 1.5}, "alpha is 1.5; give a number from 0"),
        ({"alpha": "always"}, "alpha is 'always'"),
        ({"alpha": []}, "alpha is an empty list"),
        ({"alfa": 0.5}, "has no option 'alfa'; did you mean 'alpha'"),
        ({"folding": 1}, "smooth.folding"),
        ({"shared_criterion": "most"}, "shared_criterion"),
        ({"alpha": "auto", "alpha_min": 0.8, "alpha_max": 0.2}, "alpha_min is 0.8 and alpha_max 0.2"),
        ({"alpha_step": 0}, "alpha_step is 0"),
        ({"op_types": ["LSTM"]}, "no layer of type 'LSTM' is smoothed"),
        ({"op_types": ["Conv2d"]}, "has nothing to smooth: no Conv2d"),
        ({"ops": ["fc3"]}, "the plan has no op 'fc3'; did you mean"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_any_work(net, options, said):
    plan = Plan({("fc1", "Linear"): OpScheme.from_dict(STATIC)}, passes=[Pass("smooth", options)])
    with pytest.raises(ConfigError, match=said):
        prepare(net, plan)


def test_weights_alone_are_not_smoothed(net):
    with pytest.raises(ConfigError, match="quantizes what it reads"):
        prepare(net, Plan({("fc1", "Linear"): RTNConfig().wanted}, passes=[Pass("smooth")]))


def test_inputs_that_are_not_finite_are_an_error_that_names_the_layer(net, batches):
    with pytest.raises(CalibrationError, match=r"op 'blocks.0.gate' is given NaN or Inf"):
        smoothed(net, [*batches, torch.full((1, 5, WIDTH), float("inf"))])


def test_options_of_a_search_that_is_not_made_are_named(net, batches, caplog):
    smoothed(net, batches, alpha=0.5, do_blockwise=True, alpha_min=0.2)
    assert "alpha is 0.5, so that alpha_min, do_blockwise changes nothing" in caplog.text
    caplog.clear()
    smoothed(net, batches, alpha="auto", alpha_min=0.2, alpha_step=0.4)
    assert "changes nothing" not in caplog.text


def test_several_alphas_are_for_autotune(net):
    with pytest.raises(ConfigError, match="spans a space"):
        quantize(net, SmoothQuantConfig(alpha=[0.3, 0.5]), quiet=True)
    assert [each.alpha for each in SmoothQuantConfig(alpha=[0.3, 0.5]).expand()] == [0.3, 0.5]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("blockwise", [False, True])
def test_auto_on_models_in_half_precision(net, batches, kind, blockwise):
    half, data = net.to(kind), [x.to(kind) for x in batches]
    config = SmoothQuantConfig(alpha="auto", alpha_step=0.25, do_blockwise=blockwise)
    found = quantize(copy.deepcopy(half), config, run(data), quiet=True)
    plain = quantize(copy.deepcopy(half), StaticQuantConfig(), run(data), quiet=True)
    assert found(data[0]).dtype == kind
    assert decibels(half, found, data) > decibels(half, plain, data) + 3


def test_a_plan_that_tuning_took_all_layers_of_back_to_float_runs_unsmoothed(net, batches, caplog):
    kept = {("fc1", "Linear"): float_op("fp32"), ("fc2", "Linear"): OpScheme.from_dict(STATIC)}
    execution = prepare(net, Plan(kept, passes=[Pass("smooth", {"ops": ["fc1"]})]))
    with execution.listening():
        for batch in batches:
            execution.model(batch)
    assert isinstance(execution.apply().get_submodule("fc2"), QuantModule)
    assert "nothing is smoothed: the plan has fc1 in float" in caplog.text
