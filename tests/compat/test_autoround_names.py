"""Names that AutoRoundConfig takes elsewhere: each acts, or is refused with the reason."""

import json

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from neural_compressor.algorithms import AutoRoundOptions
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import AutoRoundConfig, convert, prepare
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
    "static_attention_dtype": "fp8",
    "device_map": "0",
    "device": "cuda",
    "nblocks": 2,
    "sampler": "iter",
    "disable_opt_rtn": 1,
    "enable_norm_bias_tuning": True,
    "enable_alg_ext": True,
    "processor": object(),
    "image_processor": object(),
    "template": "x",
    "extra_data_dir": "x",
    "truncation": "longest",
    "is_mllm": True,
    "quant_nontext_module": True,
    "to_quant_block_names": ["a"],
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
    assert AutoRoundConfig(disable_opt_rtn=True).identity == AutoRoundConfig().identity  # it is about iters=0
    with pytest.raises(ConfigError, match="scales are searched"):
        AutoRoundConfig(disable_opt_rtn=True, iters=[0, 200])


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
    bound = StepLR(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), 2)
    for wrong in ("steep", bound, lambda optimizer: 0.5, [], [-1.0]):
        with pytest.raises(ConfigError, match="lr_scheduler"):
            AutoRoundConfig(lr_scheduler=wrong)
    with pytest.raises(ConfigError, match="2 factors for 5 steps"):
        AutoRoundConfig(iters=5, lr_scheduler=[1.0, 0.5]).method()


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
