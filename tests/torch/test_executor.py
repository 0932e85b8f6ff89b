"""One plan, one executor: every front runs it, and what it does not run is refused before any work."""

import copy
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import neural_compressor.torch.quantization as q
from neural_compressor import quantization as two_x
from neural_compressor.algorithms import ALGORITHMS, LayerResult, WeightOnlyAlgorithm, register_algorithm, rtn
from neural_compressor.algorithms.catalogue import LayerOptions
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.composition import CONFIGS, register_config
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import Method, OpScheme, Pass, Plan, TensorScheme
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.executor import FOLD
from neural_compressor.torch.executor import prepare as prepare_plan
from neural_compressor.torch.methods.weight_only.methods import METHODS, BlockMethod
from neural_compressor.torch.modules import HalfModule, QuantConv2d, QuantLinear, WeightOnlyLinear
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions
from neural_compressor.torch.passes.survey import Survey
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    HybridGPTQConfig,
    MixedPrecisionConfig,
    MXQuantConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TEQConfig,
    TuningConfig,
    autotune,
    convert,
    plans,
    prepare,
    quantize,
)
from neural_compressor.torch.quantization.config.fields import Bits, Flag, GroupSize, WeightDtype
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig
from neural_compressor.torch.quantization.plans import plan_for

INT8 = OpScheme.from_dict(
    {
        "weight": {"dtype": "int8", "granularity": "per_channel"},
        "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
    }
)
INT4 = OpScheme.from_dict({"weight": {"dtype": "int4", "group_size": 32}})
OUT, CONV = ("out", "Linear"), ("conv1", "Conv2d")


class Net(nn.Module):
    """A convolutional stem and an MLP with two blocks."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(2))
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = (x + self.bn2(self.conv2(x))).mean((2, 3)).repeat(1, 8)
        for part in self.mlp:
            x = x + part(x)
        return self.out(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(32, 1, 8, 8))
    for norm in (model.bn1, model.bn2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return model.eval()


@pytest.fixture
def batches():
    return [torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


@pytest.fixture
def run(batches):
    def calibrate(model):
        for batch in batches:
            model(batch)

    return calibrate


def error(model, reference, x):
    with torch.no_grad():
        return float((model(x) - reference(x)).norm() / reference(x).norm())


def same_bytes(*models):
    first, *others = [model.state_dict() for model in models]
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(first[key], other[key]) and first[key].dtype == other[key].dtype for key in first)


STATIC = StaticQuantConfig(white_list=["Conv2d"])
REACHING = {
    "static": (StaticQuantConfig(), {"conv1": QuantConv2d, "out": QuantLinear}, 0.1),
    "static-kl": (StaticQuantConfig(act_algo="kl"), {"conv1": QuantConv2d, "out": QuantLinear}, 0.2),
    "smooth": (SmoothQuantConfig(folding=True), {"conv1": QuantConv2d, "out": QuantLinear}, 0.1),
    "dynamic": (DynamicQuantConfig(), {"conv1": nn.Conv2d, "out": QuantLinear}, 0.1),
    "fp8": (FP8Config(), {"conv1": QuantConv2d, "out": QuantLinear}, 0.2),
    "fp8-e5m2": (FP8Config(fp8_config="E5M2"), {"conv1": QuantConv2d, "out": QuantLinear}, 0.3),
    "fp8-dynamic": (FP8Config(dynamic_quantization=True), {"conv1": QuantConv2d, "out": QuantLinear}, 0.2),
    "mx": (MXQuantConfig(), {"conv1": nn.Conv2d, "out": QuantLinear}, 0.1),
    "mx-fp4-fp8": (MXQuantConfig(w_dtype="fp4", act_dtype="fp8_e4m3"), {"out": QuantLinear}, 0.4),
    "mx-weight": (MXQuantConfig(w_dtype="fp6_e3m2", weight_only=True), {"out": WeightOnlyLinear}, 0.2),
    "mx-gptq": (MXQuantConfig(w_dtype="fp6_e3m2", act_dtype="fp8", w_algo="gptq"), {"out": QuantLinear}, 0.2),
    "mx-bf16-weight": (MXQuantConfig(w_dtype="bfloat16"), {"out": QuantLinear}, 0.1),
    "nvfp4-static": (StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"), {"out": QuantLinear}, 0.4),
    "nvfp4-dynamic": (DynamicQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"), {"out": QuantLinear}, 0.4),
    "half": (MixedPrecisionConfig("bf16"), {"conv1": HalfModule, "out": HalfModule}, 0.05),
    "rtn": (RTNConfig(bits=8), {"out": WeightOnlyLinear, "conv1": nn.Conv2d}, 0.1),
    "gptq": (GPTQConfig(bits=8), {"out": WeightOnlyLinear}, 0.1),
    "gptq-fp8": (HybridGPTQConfig(bits=8), {"out": QuantLinear, "conv1": nn.Conv2d}, 0.1),
    "autoround-int8": (AutoRoundConfig(bits=8, act_bits=8, iters=2), {"out": QuantLinear}, 0.1),
    "awq": (AWQConfig(bits=8), {"out": WeightOnlyLinear}, 0.1),
    "teq": (TEQConfig(bits=8), {"out": WeightOnlyLinear}, 0.1),
    "hqq": (HQQConfig(bits=8), {"out": WeightOnlyLinear}, 0.1),
    "autoround": (AutoRoundConfig(bits=8, iters=2), {"out": WeightOnlyLinear}, 0.1),
    "int4 beside int8": (
        STATIC + RTNConfig(bits=4, group_size=16),
        {"conv2": QuantConv2d, "out": WeightOnlyLinear},
        0.4,
    ),
    "gptq beside dynamic": (
        DynamicQuantConfig(white_list=["out"]) + GPTQConfig(bits=8, group_size=16),
        {"out": QuantLinear, "mlp.1.0": WeightOnlyLinear, "conv1": nn.Conv2d},
        0.1,
    ),
    "gptq beside static": (STATIC + GPTQConfig(bits=8), {"conv1": QuantConv2d, "mlp.0.2": WeightOnlyLinear}, 0.1),
}


def test_every_exported_configuration_is_tried_here():
    tried = {type(part) for config, _, _ in REACHING.values() for part in config.parts}
    exported = __import__("neural_compressor.torch.quantization", fromlist=["*"])
    classes = {value for name in exported.__all__ if hasattr(value := getattr(exported, name), "model_fields")}
    composable = {cls for cls in classes if cls.__module__.startswith("neural_compressor.torch")}
    assert composable == tried


@pytest.mark.parametrize("name", REACHING)
def test_every_configuration_reaches_convert(net, run, batches, name):
    config, kinds, allowed = REACHING[name]
    reference = copy.deepcopy(net)
    model = quantize(net, config, run_fn=run, quiet=True)
    for op, kind in kinds.items():
        assert type(model.get_submodule(op)) is kind
    assert 0 < error(model, reference, batches[0]) < allowed
    named = {op for op, _ in {**model.quantization.plan, **model.quantization.reasons}}
    assert {"conv1", "conv2", "out", "mlp.0.0", "mlp.1.2"} <= named, "nothing is skipped silently"


@pytest.mark.parametrize("name", ["static", "fp8", "int4 beside int8", "gptq beside static", "autoround", "half"])
def test_the_same_plan_gives_the_same_bytes_through_every_front(net, run, batches, name, tmp_path):
    config, _, _ = REACHING[name]
    floats = copy.deepcopy(net)
    through_prepare = prepare(copy.deepcopy(net), config)
    run(through_prepare)
    through_prepare = convert(through_prepare, quiet=True)
    plan, _ = plan_for(net, config)
    fitted = PyTorchAdaptor({"dataloader": batches, "passes": ()}).quantize(plan.to_tune_cfg(), net, batches)
    called = PyTorchAdaptor({"passes": ()}).quantize(plan.to_tune_cfg(), net, q_func=run)
    tuned = autotune(
        net,
        TuningConfig(config_set=config, workspace=tmp_path),
        eval_fn=lambda model: 1.0,
        run_fn=run,
        quiet=True,
    )
    same_bytes(through_prepare, fitted, called, tuned)
    same_bytes(net, floats)
    assert through_prepare.quantization.plan == fitted.quantization.plan == tuned.quantization.plan


def test_static_ranges_are_those_of_the_folded_model(net, run, batches):
    reference = copy.deepcopy(net)
    model = quantize(net, StaticQuantConfig(), run_fn=run, quiet=True)
    assert type(model.bn1) is nn.Identity
    seen = torch.cat([torch.relu(reference.bn1(reference.conv1(x))).detach() for x in batches])
    low, high = min(0.0, float(seen.min())), float(seen.max())
    assert float(model.conv2.input_scale) == pytest.approx((high - low) / 255, rel=1e-5)


def test_a_fold_that_the_data_refutes_is_not_made(batches):
    class Parting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x, plain=False):
            y = self.conv(x)
            return y if plain else self.norm(y)

    model = prepare(Parting().eval(), StaticQuantConfig())
    model(batches[0])
    model(batches[1], plain=True)
    model = convert(model, quiet=True)
    assert type(model.norm) is nn.BatchNorm2d
    assert type(model.conv) is QuantConv2d
    assert "conv" in model.quantization.structure.unfolded


def test_static_calibration_keeps_few_samples_and_none_without_convolutions(net, batches):
    linear = prepare(copy.deepcopy(net), StaticQuantConfig(white_list=["Linear"]))
    prepared = prepare(net, StaticQuantConfig())
    for batch in (*batches, *batches):
        prepared(batch)
        linear(batch)
    assert linear._prepared.execution.calls == []
    assert sum(len(args[0]) for args, _ in prepared._prepared.execution.calls) == 32
    assert prepared._prepared.execution.runs == 8


def test_a_model_in_training_mode_is_calibrated_as_it_will_run(net, run):
    before = net.bn1.running_mean.clone()
    plain = quantize(copy.deepcopy(net), StaticQuantConfig(), run_fn=run, quiet=True)
    trained = quantize(copy.deepcopy(net).train(), StaticQuantConfig(), run_fn=run, quiet=True)
    same_bytes(plain, trained)
    assert trained.training
    assert torch.equal(before, net.bn1.running_mean)


# -- the 2.x API ----------------------------------------------------------------------------------------------------


ALGORITHM_NAMES = {"RTN": RTNConfig, "GPTQ": GPTQConfig, "AWQ": AWQConfig, "TEQ": TEQConfig, "HQQ": HQQConfig}


def fitted(net, batches, tmp_path, **rule):
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={".*": {"weight": rule}})
    return two_x.fit(net, conf, calib_dataloader=batches, workspace=tmp_path, quiet=True).model


@pytest.mark.parametrize("name", [*ALGORITHM_NAMES, "AUTOROUND"])
def test_the_algorithm_of_a_rule_finds_the_weights(net, batches, run, tmp_path, name):
    sign = {"scheme": "asym"} if name == "HQQ" else {"scheme": "sym"}
    model = fitted(net, batches, tmp_path, bits=4, group_size=32, algorithm=name, **sign)
    schemes = {key: scheme for key, scheme in model.quantization.plan.items() if not scheme.is_float}
    assert {scheme.method.name for scheme in schemes.values()} == {name.lower()}
    assert type(model.out) is WeightOnlyLinear
    wanted = {key: replace(s, method=Method(name.lower())) for key, s in schemes.items()}
    survey = Survey(net)
    survey.see(batches[0])
    execution = prepare_plan(copy.deepcopy(net), Plan(wanted, passes=[FOLD]), survey=survey)
    with execution.listening() if execution.needs_data else np.errstate():
        run(execution.model)
    expected = execution.apply()
    assert torch.equal(model.mlp[0][0].weight_packed, expected.mlp[0][0].weight_packed)


def test_a_rule_as_documented(net, batches, tmp_path):
    model = fitted(net, batches, tmp_path, bits=4, algorithm="RTN")
    assert model.out.scheme.weight.dtype.name == "int4"


def test_a_framework_yaml_that_admits_gptq_gives_the_weights_of_gptq(net, batches, tmp_path):
    yaml = tmp_path / "mine.yaml"
    yaml.write_text(
        "int4:\n  weight_only:\n    Linear:\n      weight: {dtype: [int4], scheme: [sym], granularity: [per_group], "
        "group_size: [32], algorithm: [gptq]}\n"
    )
    conf = PostTrainingQuantConfig(
        approach="weight_only", framework_yaml=yaml, op_type_dict={"Linear": {"weight": {"dtype": "int4"}}}
    )
    model = two_x.fit(net, conf, calib_dataloader=batches, workspace=tmp_path, quiet=True).model
    assert model.quantization.plan["out", "Linear"].method.name == "gptq"
    nearest = quantize(copy.deepcopy(net), RTNConfig(quant_lm_head=True), quiet=True)
    assert not torch.equal(model.mlp[0][0].weight_packed, nearest.mlp[0][0].weight_packed)


def test_recipes_are_options_of_methods(net, batches, tmp_path):
    def with_recipes(name, **recipes):
        rule = {"weight": {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": "gptq"}}
        conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={"Linear": rule}, recipes=recipes)
        return two_x.fit(net, conf, calib_dataloader=batches, workspace=tmp_path / name, quiet=True).model

    ordered, usual = with_recipes("a", gptq_args={"actorder": True}), with_recipes("b")
    assert ordered.quantization.plan["out", "Linear"].method == Method("gptq", {"act_order": True})
    assert ordered.out.input_order is not None
    assert usual.out.input_order is None
    with pytest.raises(ConfigError, match="gptq_args has no 'actoder'"):
        with_recipes("c", gptq_args={"actoder": True})
    with pytest.raises(ConfigError, match="does not apply the recipes smooth_quant"):
        with_recipes("d", smooth_quant=True)


# -- third parties --------------------------------------------------------------------------------------------------


@pytest.fixture
def third_party():
    """Two algorithms with a configuration each: one that drops the last bit, one that looks at its inputs."""
    names = "coarse", "seen"

    @register_algorithm(names[0])
    def coarse(weight, scheme, statistics=None, *, keep: bool = False):
        return LayerResult(rtn(weight if keep else (weight * 8).round() / 8, scheme))

    @register_algorithm(names[1], needs_statistics=True)
    def seen(weight, scheme, statistics, *, power: float = 1.0):
        large = statistics.mean_square > statistics.mean_square.mean() * power
        return LayerResult(rtn(torch.where(large, weight, weight * 0.5), scheme))

    def config(name):
        class Config(WeightOnlyConfig):
            dtype: WeightDtype = "int"
            bits: Bits = 4
            use_sym: Flag = True
            group_size: GroupSize = 32
            quant_lm_head: Flag = True

        return register_config("torch", name)(Config)

    yield {name: config(name) for name in names}
    for name in names:
        ALGORITHMS._items.pop(name)
        CONFIGS._items.pop(f"torch.{name}")


@pytest.mark.parametrize("name", ["coarse", "seen"])
def test_an_algorithm_of_a_third_party_runs_through_every_front(net, batches, run, third_party, tmp_path, name):
    config = third_party[name]()
    prepared = prepare(copy.deepcopy(net), config)
    run(prepared)
    converted = convert(prepared, quiet=True)
    tuned = autotune(
        net, TuningConfig(config_set=config, workspace=tmp_path), eval_fn=lambda m: 1.0, run_fn=run, quiet=True
    )
    through_fit = fitted(net, batches, tmp_path / "fit", bits=4, group_size=32, scheme="sym", algorithm=name)
    same_bytes(converted, tuned)
    same_bytes(converted.mlp, through_fit.mlp)
    same_bytes(converted.out, through_fit.out)
    nearest = quantize(copy.deepcopy(net), RTNConfig(quant_lm_head=True, use_full_range=False), quiet=True)
    assert not torch.equal(converted.out.weight_packed, nearest.out.weight_packed)


ASKED: list = []


class WholeBlocks(BlockMethod):
    """Rounds the layers of a block, and remembers with what it was asked to."""

    def quantize_block(self, block, layers, schemes, calls, targets, options):
        ASKED.append((sorted(layers), len(calls), len(targets), options.strength))
        return {name: LayerResult(rtn(layer.weight.detach(), schemes[name])) for name, layer in layers.items()}

    def quantize(self, weight, scheme, statistics, options, last=False):
        return LayerResult(rtn(weight, scheme))


class WholeBlockOptions(LayerOptions):
    strength: float = 0.5


def test_a_method_of_a_third_party_that_works_on_blocks(net, batches, run):
    algorithm = WeightOnlyAlgorithm("blocks", None, WholeBlockOptions, needs_statistics=True, scope="block")
    ALGORITHMS.add("blocks", algorithm)
    plan = Plan(
        {(f"mlp.{i}.{j}", "Linear"): replace(INT4, method=Method("blocks")) for i in range(2) for j in (0, 2)}
        | {OUT: replace(INT4, method=Method("blocks", {"strength": 0.25}))}
    )
    try:
        with pytest.raises(ConfigError, match="nothing registered in METHODS runs it"):
            prepare_plan(net, plan)
        METHODS.add("blocks", WholeBlocks(algorithm))
        new = PyTorchAdaptor().quantize(plan.to_tune_cfg(), net, q_func=run)
        assert [([f"mlp.{i}.0", f"mlp.{i}.2"], 4, 4, 0.5) for i in range(2)] == ASKED
        assert type(new.out) is WeightOnlyLinear
    finally:
        ALGORITHMS._items.pop("blocks")
        METHODS._items.pop("blocks", None)


def test_autotune_takes_single_ops_back_to_float(net, batches, run, tmp_path):
    expected = net(batches[0]).detach()

    @torch.no_grad()
    def score(model):
        """Good as soon as the one op that matters is float."""
        return 1.0 if type(model.mlp[1][0]) is nn.Linear else 0.5 - float((model(batches[0]) - expected).norm()) * 1e-6

    config = TuningConfig(config_set=RTNConfig(bits=2), tolerable_loss=0.01, workspace=tmp_path)
    model = autotune(net, config, eval_fn=score, quiet=True)
    assert model.tuning.met
    assert type(model.mlp[1][0]) is nn.Linear
    assert sum(type(m) is WeightOnlyLinear for m in model.modules()) >= 3


# -- what is not run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan({OUT: replace(INT4, method=Method("gptqq"))}), "'gptqq'.*did you mean 'gptq'"),
        (Plan({OUT: replace(INT4, method=Method("gptq", {"act_oder": True}))}), "'act_oder'.*did you mean 'act_order'"),
        (
            Plan({OUT: replace(INT4, method=Method("gptq", {"layer_wise": True}))}),
            "layer_wise=True is not run by PyTorch",
        ),
        (Plan({OUT: replace(INT4, weight=replace(INT4.weight, algorithm="mse"))}), "'out'.*algorithm 'mse'"),
        (Plan({CONV: replace(INT8, weight=replace(INT8.weight, algorithm="kl"))}), "'conv1'.*algorithm 'kl'"),
        (Plan({OUT: INT4}, passes=[Pass("smoothe")]), "unknown pass of PyTorch 'smoothe'"),
        (Plan({OUT: INT4}, passes=[Pass("fold", {"alpha": 1})]), "the pass fold has no options; leave out alpha"),
        (Plan({CONV: replace(INT4, method=Method("gptq"))}), "'conv1'.*gptq.*is for linear layers"),
        (Plan({("outt", "Linear"): INT4}), "'outt'.*did you mean 'out'"),
        (Plan({("out", "Conv2d"): INT4}), "it is a Linear"),
        (Plan({("bn1", "BatchNorm2d"): INT8}), "'bn1'.*no quantized module"),
    ],
)
def test_what_is_not_run_is_refused_by_name_before_any_work(net, batches, plan, said):
    def never(model):
        raise AssertionError("work was done")

    with pytest.raises(ConfigError, match=said):
        PyTorchAdaptor().quantize(plan.to_tune_cfg(), net, q_func=never)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda: FP8Config(hp_dtype="fp16"), r"FP8Config\.hp_dtype"),
        (lambda: FP8Config(observer="save"), r"FP8Config\.observer"),
        (lambda: StaticQuantConfig(act_dtype="fp32"), r"StaticQuantConfig\.act_dtype"),
        (lambda: StaticQuantConfig(w_sym=False), "StaticQuantConfig asks .* scheme 'asym'"),
        (lambda: RTNConfig().set_local("conv1", RTNConfig()), "'conv1'.*a convolution"),
    ],
)
def test_a_field_that_is_not_honoured_is_refused_by_name(net, config, said):
    with pytest.raises(ConfigError, match=said):
        prepare(net, config())


def test_the_lists_of_fp8_choose_ops(net, run):
    config = FP8Config(blocklist={"names": ["mlp"], "types": ["Conv2d"]})
    model = quantize(copy.deepcopy(net), config, run_fn=run, quiet=True)
    assert [name for name, _ in model.quantization.plan] == ["out"]
    assert "blocklist" in model.quantization.reasons["conv1", "Conv2d"]
    model = quantize(net, FP8Config(allowlist={"types": [nn.Conv2d]}), run_fn=run, quiet=True)
    assert [name for name, _ in model.quantization.plan] == ["conv1", "conv2"]


@pytest.mark.parametrize(
    "config", [StaticQuantConfig, lambda: StaticQuantConfig(act_algo="minmax")], ids=["kl", "minmax"]
)
def test_an_op_that_reads_one_value_alone_is_named(config, caplog):
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.second((self.first(x) - 1e6).relu())

    quantize(Dead().eval(), config(), run_fn=lambda m: [m(torch.randn(4, 3, 5, 5)) for _ in range(2)], quiet=True)
    assert "op 'second' (Conv2d): its input was 0 in every sample" in caplog.text
    assert "'first'" not in caplog.text


def test_static_quantization_without_data_says_what_to_do(net):
    with pytest.raises(CalibrationError, match="run the prepared model"):
        convert(prepare(net, StaticQuantConfig()))


# -- what a forward reads of its layers, and what others registered ---------------------------------------------------


class _Reading(nn.Module):
    """Its forward reads how its layers were made."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.emb = nn.Conv1d(4, 8, 3, stride=2, padding=1), nn.Linear(8, 4), nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        assert (self.conv.stride, self.conv.kernel_size, self.conv.in_channels) == ((2,), (3,), 4)
        assert (self.fc.in_features, self.fc.bias is None, self.emb.embedding_dim) == (8, False, 4)
        return self.fc(self.conv(x + self.emb(at).transpose(1, 2)).mean(2))


@pytest.mark.parametrize("name", ["StaticQuantConfig", "FP8Config", "MixedPrecisionConfig", "DynamicQuantConfig"])
def test_quantized_layers_tell_how_they_were_made(name):
    inputs = torch.randn(2, 4, 16), torch.randint(0, 10, (2, 16))
    model = q.prepare(_Reading().eval(), getattr(q, name)())
    model(*inputs)
    assert q.convert(model, quiet=True)(*inputs).shape == (2, 4)


def test_an_entry_of_a_blocklist_that_matches_nothing_is_an_error(net):
    with pytest.raises(ConfigError, match=r"FP8Config.blocklist: 'outt' among the names matches no op.*'out'"):
        q.prepare(net, q.FP8Config(blocklist={"names": ["outt"]}))


@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda weight, scheme, statistics: 1 / 0, "ZeroDivisionError"), (lambda weight, *_: weight, "gave a Tensor")],
    ids=["raises", "another type"],
)
def test_an_algorithm_of_a_third_party_that_fails_is_named_with_its_layer(net, function, said):
    register_algorithm("failing")(function)
    try:
        plan = Plan({OUT: replace(INT4, method=Method("failing"))})
        with pytest.raises(QuantizationError, match=f"'out'.*algorithm 'failing'.*{said}"):
            PyTorchAdaptor().quantize(plan.to_tune_cfg(), net)
    finally:
        ALGORITHMS._items.pop("failing")


def test_a_pass_that_moves_no_module_leaves_what_was_folded(net, batches):
    expected, seen = through_adaptor(net, batches, (FOLD,)), []

    class Look(ModelPass):
        class Options(PassOptions):
            at: int = 0

        def before(self, state):
            seen.append(self.options.at)

    PASSES.add("look", Look)
    try:
        found = through_adaptor(net, batches, (FOLD, Pass("look", {"at": 1})))
        with pytest.raises(ConfigError, match=r"the pass look has no option 'att'; did you mean 'at'"):
            through_adaptor(net, batches, (Pass("look", {"att": 1}),))
        with pytest.raises(ConfigError, match=r"the pass look.at: got 'here'"):
            through_adaptor(net, batches, (Pass("look", {"at": "here"}),))
    finally:
        PASSES._items.pop("look")
    assert seen == [1]
    assert found.quantization.structure == expected.quantization.structure
    assert found.quantization.structure.folded


@torch.no_grad()
def make_louder(module, by):
    module.weight *= by
    module.bias *= by


class Louder(ModelPass):
    """The output of conv1 grows, so that ops behind it receive more, and the biases of the quantized model end as ones."""

    moves_ranges = True

    class Options(PassOptions):
        by: float = 8.0

    def before(self, state):
        folded = "bn1" in state.structure.folded
        make_louder(state.model.conv1 if folded else state.model.bn1, self.options.by)

    def after(self, state):
        assert sum(1 for _ in state.replay()) == len(state.calls) > 0
        state.model.out.bias.fill_(1.0)


@pytest.fixture
def louder():
    PASSES.add("louder", Louder)
    yield Pass("louder", {"by": 16.0})
    PASSES._items.pop("louder")


@pytest.mark.parametrize("order", ["first", "last"])
def test_ranges_behind_a_pass_that_moves_them_are_those_of_the_changed_model(net, batches, louder, order):
    ops = {CONV: INT8, ("conv2", "Conv2d"): INT8, OUT: INT8}
    changed = copy.deepcopy(net)
    make_louder(changed.bn1, 16)
    adaptor = PyTorchAdaptor({"dataloader": batches})
    plain = adaptor.quantize(Plan(ops, passes=[FOLD]).to_tune_cfg(), net, batches)
    passes = [louder, FOLD] if order == "first" else [FOLD, louder]
    moved = adaptor.quantize(Plan(ops, passes=passes).to_tune_cfg(), net, batches)
    again = adaptor.quantize(Plan(ops, passes=[FOLD]).to_tune_cfg(), net, batches)
    expected = PyTorchAdaptor({"dataloader": batches}).quantize(
        Plan(ops, passes=[FOLD]).to_tune_cfg(), changed, batches
    )
    for name in ("conv1", "conv2", "out"):
        assert torch.equal(again.get_submodule(name).input_scale, plain.get_submodule(name).input_scale)
        torch.testing.assert_close(moved.get_submodule(name).input_scale, expected.get_submodule(name).input_scale)
        torch.testing.assert_close(moved.get_submodule(name).weight, expected.get_submodule(name).weight)
    # what is added to something has a range of its output too
    torch.testing.assert_close(moved.conv2.output_scale, expected.conv2.output_scale)
    assert (moved.out.bias == 1).all()
    assert moved.conv2.input_scale > 8 * plain.conv2.input_scale
    # errors of ops are those beside the float model that was quantized
    assert min(r.output_sqnr for r in adaptor.summary(moved) if r.name.startswith("conv")) > 20
    errors = adaptor.op_errors(Plan(ops, passes=passes), net, batches)
    assert max(errors[key] for key in ops if key != OUT) < 0.01


def test_a_plan_whose_pass_moves_ranges_needs_data_again(net, batches, louder):
    execution = prepare_plan(copy.deepcopy(net), Plan({OUT: INT8}, passes=[louder]))
    assert execution.needs_data
    with pytest.raises(CalibrationError, match="the pass louder needs calibration"):
        execution.apply()


def through_adaptor(net, batches, passes):
    plan = Plan({CONV: INT8, OUT: INT8}, passes=passes)
    return PyTorchAdaptor({"dataloader": batches}).quantize(plan.to_tune_cfg(), net, batches)


def test_passes_of_a_training_are_not_passed_over(net, batches, louder):
    with pytest.raises(ConfigError, match=r"the pass louder\(by=16.0\) is for quantization after training"):
        PyTorchAdaptor({"dataloader": batches}).prepare_training(Plan({CONV: INT8}, passes=[louder]).to_tune_cfg(), net)


def test_recipes_of_a_training_are_not_passed_over(net, batches):
    cfg = {**Plan({OUT: INT8}).to_tune_cfg(), "recipe_cfgs": {"smooth_quant": True}}
    with pytest.raises(ConfigError, match=r"the pass smooth\(\) is for quantization after training"):
        PyTorchAdaptor({"dataloader": batches}).prepare_training(cfg, net)


class Attending(nn.Module):
    """Two products by functions behind layers."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        scores = torch.matmul(self.q(x), self.k(x).transpose(-1, -2))
        return scores.softmax(-1) @ x


class Hidden(nn.Module):
    """A forward that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.attend = Attending()

    def forward(self, x):
        return self.attend(x[: int(x.shape[0])])


@pytest.mark.parametrize("config", [q.RTNConfig(group_size=16), q.DynamicQuantConfig()], ids=["rtn", "dynamic"])
def test_products_by_functions_are_listed_where_no_data_ran(config):
    model = q.quantize(Hidden(), config, quiet=True)
    found = {key: why for key, why in model.quantization.reasons.items() if key[1] != "Linear"}
    assert set(found) == {("attend.matmul", "matmul"), ("attend.matmul_1", "matmul"), ("functions", "function")}
    assert found["functions", "function"] == "not looked for in Hidden: their forwards cannot be traced"
    assert "only modules are quantized" in found["attend.matmul", "matmul"]


def test_they_are_listed_where_data_ran():
    model = q.quantize(Hidden(), q.StaticQuantConfig(), run_fn=lambda m: m(torch.rand(4, 16)), quiet=True)
    found = {key for key in model.quantization.reasons if key[1] != "Linear"}
    assert found == {("attend.matmul", "matmul"), ("attend.matmul_1", "matmul")}


@pytest.fixture
def refusing():
    class Refusing(ModelPass):
        refuses: ClassVar[bool] = True

        def before(self, state):
            if self.refuses:
                raise QuantizationError("not this model")

    PASSES.add("refusing", Refusing)
    yield Refusing
    PASSES._items.pop("refusing")


def test_a_pass_that_refuses_the_model_leaves_its_mode_and_what_was_calibrated(net, run, refusing, monkeypatch):
    monkeypatch.setattr(plans, "USUAL_PASSES", (Pass("refusing"),))
    net.train()
    net.out.eval()
    modes = {name: module.training for name, module in net.named_modules()}
    prepared = prepare(net, StaticQuantConfig())
    run(prepared)
    with pytest.raises(QuantizationError, match="not this model"):
        convert(prepared, quiet=True)
    assert {name: module.training for name, module in net.named_modules()} == modes
    refusing.refuses = False
    assert isinstance(convert(prepared, quiet=True).out, QuantLinear)  # without calibration again


@pytest.mark.parametrize("inplace", [True, False])
def test_data_that_was_forgotten_can_run_after_convert_has_said_so(net, run, inplace):
    prepared = prepare(net, StaticQuantConfig())
    with pytest.raises(CalibrationError, match="run the prepared model on data"):
        convert(prepared, inplace=inplace, quiet=True)
    run(prepared)
    assert isinstance(convert(prepared, quiet=True).out, QuantLinear)


@pytest.mark.parametrize("at_once", [convert, quantize])
def test_a_model_converted_at_once_is_not_left_prepared(net, at_once):
    with pytest.raises(CalibrationError):
        at_once(net, StaticQuantConfig(), quiet=True)
    with pytest.raises(ConfigError, match="not prepared"):
        convert(net, quiet=True)


@pytest.mark.parametrize(
    ("weight", "method", "said"),
    [
        ({}, Method("gptq"), "full_range=False"),
        ({"pair_safe": True}, Method("gptq", {"full_range": False}), "safe in pairs"),
        ({"scales": {"dtype": "int8"}}, Method("gptq", {"full_range": False}), "double quantization"),
    ],
)
def test_weights_that_cannot_stand_beside_quantized_activations(weight, method, said):
    tensor = TensorScheme.from_dict({"dtype": "int8", "granularity": "per_channel", **weight})
    activation = TensorScheme.from_dict({"dtype": "int8", "granularity": "per_token"})
    plan = Plan({("0", "Linear"): OpScheme(tensor, activation, "dynamic", method)})
    with pytest.raises(ConfigError, match=said):
        prepare_plan(nn.Sequential(nn.Linear(8, 8)), plan)
