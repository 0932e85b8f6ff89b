"""Names that AutoRoundConfig takes elsewhere: each acts, or is refused with the reason."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from neural_compressor.algorithms import AutoRoundOptions
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import AutoRoundConfig, RTNConfig, convert, prepare, quantize
from neural_compressor.torch.quantization.config.autoround_names import NOT_HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.fc2(self.fc1(x).relu()).relu())


def quantized(**fields):
    torch.manual_seed(0)
    model = prepare(Net().eval(), AutoRoundConfig(**{"group_size": 32, "iters": 2, **fields}))
    for seed in range(4):
        model(torch.randn(8, 32, generator=torch.Generator().manual_seed(seed)))
    return convert(model, quiet=True)


OTHERS = {
    "reloading": 1,
    "model_free": True,
    "enable_norm_bias_tuning": True,
    "enable_alg_ext": True,
    "processor": object(),
    "image_processor": object(),
    "template": "x",
    "extra_data_dir": "x",
    "truncation": "longest",
    "is_mllm": True,
    "quant_nontext_module": True,
    "low_gpu_mem_usage": 3,
    "low_cpu_mem_usage": "no",
    "use_layer_wise": 1,
}


def test_every_name_is_tried():
    assert set(OTHERS) == set(NOT_HERE)


@pytest.mark.parametrize("name", OTHERS)
def test_what_asks_for_something_else_is_refused_and_what_does_not_is_taken(name):
    admitted, reason = NOT_HERE[name]
    for value in admitted:
        assert AutoRoundConfig(**{name: value}).identity == AutoRoundConfig().identity
    with pytest.raises(ConfigError) as error:
        AutoRoundConfig(**{name: OTHERS[name], "iters": 0})
    assert f"AutoRoundConfig.{name}" in str(error.value)
    assert reason in str(error.value)


def test_what_only_changes_the_speed_is_taken(caplog):
    assert AutoRoundConfig(enable_torch_compile=True).identity == AutoRoundConfig().identity
    assert "not compiled" in caplog.text


def test_the_cpu_is_a_device_of_every_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert AutoRoundConfig(device="cpu").identity == AutoRoundConfig(device_map="cpu").identity


def test_layers_of_their_own():
    model = quantized(bits=4, layer_config={"fc2": {"bits": 8, "sym": False}}, ignore_layers="head")
    assert model.fc1.scheme.weight.dtype.name == "int4"
    assert (model.fc2.scheme.weight.dtype.name, model.fc2.scheme.weight.symmetric) == ("int8", False)
    assert model.fc2.scheme.method == model.fc1.scheme.method  # all else is that of the whole
    assert type(model.head) is nn.Linear
    assert type(quantized(layer_config={"fc1": {"bits": 16}}).fc1) is nn.Linear
    with pytest.raises(ConfigError, match="matches"):
        quantized(ignore_layers="nowhere")
    named = quantized(bits=4, layer_config={"fc2": "W8A16"})
    assert [named.get_submodule(name).scheme.weight.dtype.name for name in ("fc1", "fc2")] == ["int4", "int8"]
    with pytest.raises(ConfigError, match="layer_config"):
        AutoRoundConfig(layer_config={"fc1": 8})
    config = AutoRoundConfig(bits=2, layer_config={"fc1": {"bits": 8}}, fp_layers=["head"])
    assert AutoRoundConfig.from_dict(config.to_dict()).identity == config.identity


def test_a_step_may_see_several_batches():
    method = AutoRoundConfig(batch_size=4, gradient_accumulate_steps=3).method()
    assert AutoRoundOptions(**method.options).samples_per_step == 12


def test_schedules_of_the_learning_rate():
    halved = AutoRoundConfig(iters=4, lr_scheduler=lambda optimizer: StepLR(optimizer, 2, gamma=0.5))
    assert AutoRoundOptions(**halved.method().options).lr_scheduler == (1.0, 1.0, 0.5, 0.5)
    assert AutoRoundConfig.from_dict(json.loads(halved.to_json_string())).identity == halved.identity
    assert AutoRoundConfig(lr_scheduler=None).identity == AutoRoundConfig(lr_scheduler="linear").identity
    wild = {"iters": 4, "lr": 0.3, "not_use_best_mse": True}
    codes = [quantized(**wild, lr_scheduler=name).fc1.weight_array().codes for name in ("linear", "constant")]
    assert not torch.equal(*codes)
    for wrong in ("steep", lambda optimizer: 0.5, [], [-1.0]):
        with pytest.raises(ConfigError, match="lr_scheduler"):
            AutoRoundConfig(lr_scheduler=wrong)
    with pytest.raises(ConfigError, match="2 factors for 5 steps"):
        AutoRoundConfig(iters=5, lr_scheduler=[1.0, 0.5]).method()


def optimizer_of(*rates):
    groups = [{"params": [torch.zeros(3, requires_grad=True)], "lr": rate} for rate in rates]
    return torch.optim.Adam(groups)


SCHEDULERS = {
    "step": lambda optimizer: StepLR(optimizer, 2, gamma=0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 6),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "warm restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 3),
    "cyclic": lambda optimizer: CyclicLR(optimizer, 0.02, 0.08, step_size_up=2, cycle_momentum=False),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    "sequential": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=3), ExponentialLR(o, 0.9)], milestones=[3]),
    "chained": lambda o: ChainedScheduler([ConstantLR(o, 0.5, 2), ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("made_by", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("moved", [0, 2])
def test_a_scheduler_of_an_optimizer_gives_its_factors_and_is_left_as_it_was(made_by, moved, recwarn):
    optimizer = optimizer_of(0.02, 0.02)
    scheduler = made_by(optimizer)
    for _ in range(moved):
        optimizer.step()
        scheduler.step()
    states = [copy.deepcopy(each.state_dict()) for each in (optimizer, scheduler)]
    recwarn.clear()
    config = AutoRoundConfig(iters=6, lr_scheduler=scheduler)
    assert not recwarn
    for each, state in zip((optimizer, scheduler), states, strict=True):
        assert repr(each.state_dict()) == repr(state)
    start, expected = optimizer.param_groups[0]["initial_lr"], []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"] / start)
        optimizer.step()
        scheduler.step()
    assert config.lr_scheduler == pytest.approx(expected)
    assert AutoRoundConfig.from_dict(json.loads(config.to_json_string())).identity == config.identity


def test_a_scheduler_with_no_one_factor_a_step_is_refused():
    falling = [lambda step: 0.5**step, lambda step: 0.9**step]
    with pytest.raises(ConfigError, match=r"different factors \(0\.5, 0\.9 in step 1\).*one group"):
        AutoRoundConfig(lr_scheduler=LambdaLR(optimizer_of(0.1, 0.2), falling))
    AutoRoundConfig(lr_scheduler=StepLR(optimizer_of(0.1, 0.2), 2))  # other rates, the same factors
    for scheduler in (ReduceLROnPlateau(optimizer_of(0.1)), ReduceLROnPlateau):
        with pytest.raises(ConfigError, match=r"lr_scheduler: ReduceLROnPlateau follows a metric.*dynamic_max_gap"):
            AutoRoundConfig(lr_scheduler=scheduler)
    with pytest.raises(ConfigError, match="learning rate of 0"):
        AutoRoundConfig(lr_scheduler=StepLR(optimizer_of(0.0), 2))
    with pytest.raises(ConfigError, match="iters is 0"):
        AutoRoundConfig(lr_scheduler=StepLR(optimizer_of(0.1), 2), iters=0)


def test_samples_at_random_or_in_order():
    assert AutoRoundConfig(sampler=None).identity == AutoRoundConfig(sampler="rand").identity
    assert AutoRoundConfig(sampler="sequential").identity == AutoRoundConfig(sampler="seq").identity
    assert AutoRoundConfig(sampler="seq").method().options["sampler"] == "seq"
    with pytest.raises(ConfigError, match=r"AutoRoundConfig\.sampler: got 'sequental'.*'sequential'"):
        AutoRoundConfig(sampler="sequental")
    wild = {"iters": 3, "lr": 0.3, "batch_size": 8, "not_use_best_mse": True}

    def codes(**fields):
        return quantized(**wild, **fields).fc1.weight_array().codes

    assert torch.equal(codes(sampler="seq", seed=1), codes(sampler="seq", seed=2))
    assert not torch.equal(codes(sampler="rand", seed=1), codes(sampler="rand", seed=2))
    assert not torch.equal(codes(sampler="seq"), codes(sampler="rand"))


@pytest.mark.parametrize(
    "fields",
    [
        {"bits": 4, "group_size": 32, "use_sym": True, "use_full_range": True},
        {"bits": 3, "group_size": -1, "use_sym": True, "use_full_range": False},
        {"bits": 2, "group_size": 16, "use_sym": False},
        {"dtype": "nf4", "group_size": 32},
    ],
)
def test_nearest_rounding_without_a_search_is_that_of_rtn(fields):
    torch.manual_seed(0)
    net = Net().eval()
    plain = AutoRoundConfig(iters=0, disable_opt_rtn=True, **fields)
    assert plain.wanted == RTNConfig(**fields).wanted
    ours, expected = (quantize(copy.deepcopy(net), config) for config in (plain, RTNConfig(**fields)))  # without data
    searched = quantize(
        copy.deepcopy(net), AutoRoundConfig(iters=0, **fields), lambda model: model(torch.randn(64, 32))
    )
    for name in ("fc1", "fc2"):
        own, other = (model.get_submodule(name).weight_array() for model in (ours, expected))
        assert torch.equal(own.codes, other.codes)
        assert torch.equal(own.scale, other.scale)
        assert not torch.equal(own.scale, searched.get_submodule(name).weight_array().scale)


def test_nearest_rounding_without_a_search_is_asked_for_with_no_steps_alone():
    usual = AutoRoundConfig()
    assert AutoRoundConfig(disable_opt_rtn=True).identity == AutoRoundConfig(disable_opt_rtn=None).identity
    assert AutoRoundConfig(disable_opt_rtn=True).wanted == usual.wanted
    found = [each.method().name for each in AutoRoundConfig(disable_opt_rtn=True, iters=[0, 200]).expand()]
    assert found == ["rtn", "autoround"]
    for scheme, kind in (("W4A8", "int8"), ("MXFP4", "mxfp4")):
        model = quantized(iters=0, disable_opt_rtn=True, scheme=scheme)
        assert (model.fc1.scheme.activation.dtype.name, model.fc1.scheme.method) == (kind, None)


def test_training_that_gains_nothing_ends():
    assert AutoRoundConfig(dynamic_max_gap=None).identity == AutoRoundConfig().identity
    wild = {"iters": 40, "lr": 1.0, "not_use_best_mse": True}
    codes = [quantized(**wild, dynamic_max_gap=gap).fc1.weight_array().codes for gap in (-1, 1)]
    assert not torch.equal(*codes)


def test_scales_are_quantized_on_demand():
    model = quantized(super_bits=6, super_group_size=8)
    scales = model.fc1.scheme.weight.scales
    assert (scales.dtype.bits, scales.granularity.size, scales.symmetric) == (6, 8, False)
    array, plain = model.fc1.weight_array(), quantized().fc1.weight_array()
    assert torch.equal(array.codes, plain.codes)  # what was trained
    rounded, floats = array.qparams.scale, plain.qparams.scale
    assert not torch.equal(rounded, floats)
    # Half a step of 2^6 over what eight scales span, zero included.
    spans = floats.reshape(-1, 8)
    steps = (spans.amax(1).clamp(min=0) - spans.amin(1).clamp(max=0)) / 63
    assert bool(((rounded - floats).reshape(-1, 8).abs() <= 1.01 * steps[:, None]).all())
    for wrong in ({"super_bits": 6}, {"super_group_size": 8}, {"super_bits": 6, "super_group_size": 8, "act_bits": 8}):
        with pytest.raises(ConfigError, match="super_"):
            quantized(**wrong)


def test_other_names():
    assert AutoRoundConfig(not_use_best_mse=True).method().options["keep_best"] is False
    assert AutoRoundConfig(enable_full_range=False).use_full_range is False
    assert quantized(iters=0).fc1.scheme.method.options["iters"] == 0


@pytest.mark.parametrize(
    ("scheme", "fields", "expected"),
    [
        ("W2A16G64", {"sym": False}, ("int", 2, 64, 16)),
        ("W2A16G64", {"bits": 8}, ("int", 8, 64, 16)),
        ("W2A16G64", {"scheme": "W8A16"}, ("int", 8, 128, 16)),
        ("MXFP4", {"iters": 5}, ("mxfp4", 4, 32, 4)),
    ],
)
def test_a_rule_for_some_layers_starts_from_the_scheme_of_all(scheme, fields, expected):
    (rule,) = AutoRoundConfig(scheme=scheme, layer_config={"fc1": fields}).local
    assert (rule.config.dtype, rule.config.bits, rule.config.group_size, rule.config.act_bits) == expected


def test_inputs_with_one_scale_want_weights_of_as_many_bits():
    with pytest.raises(ConfigError, match=r"act_dynamic=False: got int4 weights.*bits=8"):
        quantized(act_bits=8, act_dynamic=False)
