"""Training with rounding in the forward pass: what is seen is what will be stored, and scales can be learned."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor import training
from neural_compressor.algorithms.qat import QatOptions, trained, untrained
from neural_compressor.config import QuantizationAwareTrainingConfig
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import OpScheme, Plan, is_pair_safe
from neural_compressor.torch import functional
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.methods.qat import QatSession
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    MXQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    convert,
    finalize_calibration,
    load,
    prepare,
    prepare_qat,
)

ACTIVATION = {"dtype": "uint8", "scheme": "asym", "granularity": "per_tensor", "algorithm": "minmax"}


def scheme(mode="static", activation=ACTIVATION, **weight):
    weight = {"dtype": "int4", "scheme": "sym", "granularity": "per_channel", "algorithm": "minmax", **weight}
    cfg = {"weight": weight}
    if activation is not None:
        cfg["activation"] = {**activation, "quant_mode": mode}
    return OpScheme.from_dict(cfg)


def session_of(model, op, key=("0", "Linear"), **options):
    return QatSession(model.train(), trained(Plan({key: op}), **options), Structure(), {})


def linear(inputs=16, outputs=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, outputs))


SCHEMES = {
    "int8": scheme(dtype="int8"),
    "int2": scheme(dtype="int2"),
    "int8 per tensor": scheme(dtype="int8", granularity="per_tensor"),
    "uint4 asym": scheme(dtype="uint4", scheme="asym"),
    "fp8": scheme(dtype="fp8_e4m3", activation={**ACTIVATION, "dtype": "fp8_e4m3", "scheme": "sym"}),
    "pair safe": scheme(dtype="int8", pair_safe=True),
    "dynamic": scheme("dynamic", dtype="int8"),
    "weights alone": OpScheme.from_dict({"weight": {"dtype": "int4", "scheme": "sym", "group_size": 8}}),
    "mxfp4": scheme("dynamic", {"dtype": "mxfp8", "scheme": "sym"}, dtype="mxfp4"),
}


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_weight_that_is_trained_is_the_weight_that_is_stored(name, learned):
    op = SCHEMES[name]
    if learned and op.weight.dtype.scale_type is not None:
        with pytest.raises(ConfigError, match=r"op '0' \(Linear\): learned_step_size trains float scales"):
            session_of(linear(), op, learned_step_size=True)
        return
    session = session_of(linear(), op, learned_step_size=learned)
    x = torch.randn(32, 16)
    optimizer = torch.optim.SGD(session.model.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        session.model(x).square().mean().backward()
        optimizer.step()
    seen = session.model[0].weight.detach().clone()
    output = session.model.eval()(x).detach()
    new = session.finish()
    torch.testing.assert_close(new[0].dequantized_weight(), seen)
    step = output.abs().max() * 0.02
    assert float((new(x) - output).abs().max()) <= step
    assert new[0].scheme.method.name == "qat"
    if op.weight.pair_safe:
        assert is_pair_safe(new[0].weight_array().codes.numpy(), new[0].pairs())


@pytest.mark.parametrize(
    ("make", "shape", "kind"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 6), "Conv2d"),
        (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 6, 6), "ConvTranspose2d"),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 6, 6), "Conv2d"),
    ],
)
@pytest.mark.parametrize("learned", [False, True])
def test_convolutions(make, shape, kind, learned):
    torch.manual_seed(0)
    model = nn.Sequential(make())
    op = scheme(dtype="int8", axis=1) if kind == "ConvTranspose2d" else scheme(dtype="int4")
    if kind == "ConvTranspose2d":
        op = scheme(dtype="int8", granularity="per_tensor")
    session = session_of(model, op, ("0", kind), learned_step_size=learned)
    session.model(torch.randn(shape)).mean().backward()
    seen = session.model[0].weight.detach().clone()
    torch.testing.assert_close(session.finish()[0].dequantized_weight(), seen)


def test_the_gradient_of_a_learned_step_is_that_of_lsq():
    # Esser et al., equation 3, written out value by value.
    model = linear(4, 1)
    session = session_of(model, scheme(dtype="int4", granularity="per_tensor", activation=None), learned_step_size=True)
    rounding = model[0].parametrizations["weight"][0]
    weight = torch.tensor([[0.31, -0.87, 5.0, -9.0]])
    with torch.no_grad():
        model[0].parametrizations["weight"].original.copy_(weight)
        rounding.first.fill_(0.5)
    model[0].weight.sum().backward()
    low, high, expected = -8, 7, 0.0
    for value in weight.flatten().tolist():
        steps = value / 0.5
        expected += low if steps <= low else high if steps >= high else round(steps) - steps
    expected /= np.sqrt(4 * high) * 0.5  # what is trained is the ratio to the first step
    assert float(rounding.step.grad) == pytest.approx(expected, rel=1e-5)
    outside = [low <= value / 0.5 <= high for value in weight.flatten().tolist()]
    assert model[0].parametrizations["weight"].original.grad.flatten().tolist() == [float(inside) for inside in outside]
    session.finish()


def test_learned_ranges_come_out_as_scale_and_zero_point():
    session = session_of(linear(), scheme(dtype="int8"), learned_step_size=True)
    session.model(torch.rand(64, 16) * 3 - 1)
    rounding = session.model[0].activation_rounding
    with torch.no_grad():
        rounding.steps[0].fill_(0.0125 / float(rounding.first[0]))
        rounding.zeros[0].fill_(77.4)
    new = session.finish()
    assert float(new[0].input_scale) == pytest.approx(0.0125)
    assert int(new[0].input_zero_point) == 77
    assert "activation_rounding" not in dict(new.named_modules())


def test_learning_steps_beats_following_ranges_at_two_bits():
    torch.manual_seed(0)
    x = torch.randn(512, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    loss, losses = nn.functional.cross_entropy, {}
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    low = scheme(dtype="int2", activation={**ACTIVATION, "dtype": "uint4"})
    plan = Plan({("0", "Linear"): low, ("2", "Linear"): low})
    for learned in (False, True):
        session = QatSession(copy.deepcopy(model).train(), trained(plan, learned_step_size=learned), Structure(), {})
        optimizer = torch.optim.Adam(session.model.parameters(), 0.01)
        for _ in range(150):
            optimizer.zero_grad()
            loss(session.model(x), y).backward()
            optimizer.step()
        losses[learned] = float(loss(session.finish()(x), y))
    assert losses[True] < losses[False]


def test_functional_ops_are_trained_with_both_inputs_and_the_output():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.add = nn.Linear(8, 8), functional.Add()

        def forward(self, x):
            return self.add(self.fc(x), x)

    torch.manual_seed(0)
    cfg = {"activation": {**ACTIVATION, "quant_mode": "static"}}
    plan = Plan({("fc", "Linear"): scheme(dtype="int8"), ("add", "Add"): OpScheme.from_dict(cfg)})
    x = torch.randn(16, 8)
    session = QatSession(Sum().train(), trained(plan, learned_step_size=True), Structure(), {})
    before = session.model(x).detach()
    assert len(session.model.add.activation_rounding.steps) == 3
    torch.testing.assert_close(session.finish()(x), before, atol=0.05, rtol=0.05)


def test_plans_of_training_are_plain_data_and_refused_elsewhere():
    plan = trained(Plan({("0", "Linear"): SCHEMES["int8"]}), learned_step_size=True, freeze_after=2)
    assert Plan.from_json(plan.to_json()) == plan
    assert untrained(plan) == Plan({("0", "Linear"): SCHEMES["int8"]})
    with pytest.raises(ConfigError, match="finds weights in training"):
        PyTorchAdaptor({"dataloader": [torch.rand(4, 16)]}).quantize(plan.to_tune_cfg(), linear(), [torch.rand(4, 16)])
    with pytest.raises(ConfigError, match="learned_step"):
        QatOptions.of({"learned_step": True})
    with pytest.raises(ConfigError, match="freeze_after"):
        trained(plan, freeze_after=-1)


# -- through the fronts ---------------------------------------------------------------------------------------------


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()


IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_learned_scales_of_fp8_are_those_of_the_result():
    model = prepare_qat(linear(), FP8Config(scale_method="maxabs_arbitrary"), learned_step_size=True)
    x = torch.randn(32, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    expected = model.eval()(x).detach()
    torch.testing.assert_close(convert(model, quiet=True)(x), expected)


@pytest.mark.parametrize("method", ["maxabs_hw", "maxabs_pow2", "unit_scale"])
def test_scales_among_a_few_cannot_be_learned(method):
    with pytest.raises(ConfigError, match=r"op '0' \(Linear\): learned_step_size .*'maxabs_arbitrary'"):
        prepare_qat(linear(), FP8Config(scale_method=method), learned_step_size=True)


@pytest.mark.parametrize("learned", [False, True])
def test_prepare_train_convert_save_load(learned, tmp_path, capsys):
    model = prepare_qat(net(), StaticQuantConfig(), example_inputs=IMAGES, learned_step_size=learned)
    assert isinstance(model[1], nn.Identity)  # folded before training
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()
    seen = model[0].weight.detach().clone()
    new = convert(model)
    assert "int8" in capsys.readouterr().err
    torch.testing.assert_close(new[0].dequantized_weight(), seen)
    new.save(tmp_path / "out")
    assert torch.equal(load(tmp_path / "out", original_model=net())(IMAGES), new(IMAGES))


@pytest.mark.parametrize("config", [RTNConfig(group_size=8), DynamicQuantConfig(), MXQuantConfig()], ids=str)
def test_other_configurations_can_be_trained(config):
    model = prepare_qat(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), config)
    x = torch.randn(4, 16)
    model(x).mean().backward()
    expected = model.eval()(x).detach()
    torch.testing.assert_close(convert(model, quiet=True)(x), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (GPTQConfig(), "gptq"),
        (HQQConfig(), "hqq"),
        (RTNConfig(scale_search="mse"), "search='mse'"),
        (RTNConfig(hadamard=True), "hadamard=True"),
        (MXQuantConfig(w_algo="gptq"), "gptq"),
    ],
)
def test_methods_that_find_weights_otherwise_are_refused_before_training(config, method):
    model = linear()
    with pytest.raises(ConfigError, match=f"{method}.*finds weights without training"):
        prepare_qat(model, config)
    assert prepare_qat(model, RTNConfig()) is model


@pytest.mark.parametrize("scheme", ["W4A16", "W4A8", "INT8"])
def test_schemes_by_name_are_trained(scheme):
    new = convert(prepare_qat(linear(128, 8), {nn.Linear: scheme}), quiet=True)
    assert new[0].scheme.method.name == "qat"


def test_weights_that_are_not_rounded_in_training_are_named(caplog):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.fc = nn.LSTM(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.fc(self.lstm(x)[0])

    prepare_qat(Recurrent(), DynamicQuantConfig())
    assert "when it ends: the weights of 'lstm' (LSTM), which" in caplog.text


def test_frozen_ranges_stay():
    model = prepare_qat(linear(), StaticQuantConfig())
    model(torch.rand(8, 16))
    finalize_calibration(model)
    model(torch.rand(8, 16) * 100)
    assert float(convert(model, quiet=True)[0].input_scale) < 0.01


def test_frozen_steps_are_not_trained():
    model = prepare_qat(linear(), StaticQuantConfig(), learned_step_size=True)
    x = torch.rand(8, 16)
    model(x)
    finalize_calibration(model)
    model(x).mean().backward()
    rounding = model[0].activation_rounding
    assert all(parameter.grad is None for parameter in rounding.parameters())
    assert model[0].parametrizations["weight"][0].step.grad is not None


def test_a_checkpoint_of_a_training_has_the_learned_ranges():
    model = prepare_qat(linear(), StaticQuantConfig(), learned_step_size=True)
    model(torch.rand(8, 16))
    with torch.no_grad():
        model[0].activation_rounding.steps[0].fill_(0.5)
    again = prepare_qat(linear(), StaticQuantConfig(), learned_step_size=True)
    again.load_state_dict(model.state_dict())
    again(torch.rand(8, 16) * 100)  # what is learned already is not taken from new data
    first, second = (convert(each, quiet=True)[0] for each in (model, again))
    assert float(first.input_scale) == float(second.input_scale)


def test_the_front_refuses_what_cannot_be():
    with pytest.raises(CalibrationError, match="no batch has run"):
        convert(prepare_qat(linear(), StaticQuantConfig()))
    model = prepare_qat(linear(), StaticQuantConfig())
    with pytest.raises(ConfigError, match="prepared already"):
        prepare_qat(model, StaticQuantConfig())
    with pytest.raises(ConfigError, match="prepared already"):
        prepare(model, StaticQuantConfig())


def test_a_training_loop_counts_its_epochs():
    conf = QuantizationAwareTrainingConfig(learned_step_size=False, freeze_after=1)
    manager = training.prepare_compression(linear(), conf)
    with pytest.raises(ConfigError, match="without on_train_begin"):
        manager.callbacks.on_epoch_begin(0)
    manager.callbacks.on_train_begin()
    for epoch, size in enumerate((1.0, 100.0)):
        manager.callbacks.on_epoch_begin(epoch)
        manager.callbacks.on_step_begin(0)
        manager.model(torch.rand(8, 16) * size).mean().backward()
        manager.callbacks.on_before_optimizer_step()
        manager.callbacks.on_after_optimizer_step()
        manager.callbacks.on_step_end()
        manager.callbacks.on_epoch_end()
    with pytest.raises(ConfigError, match="expected the number of the epoch"):
        manager.callbacks.on_epoch_begin("last")
    manager.callbacks.on_train_end()
    assert float(manager.model[0].input_scale) < 0.01


def test_ranges_to_be_frozen_need_epochs():
    manager = training.prepare_compression(linear(), QuantizationAwareTrainingConfig(freeze_after=1))
    manager.callbacks.on_train_begin()
    manager.model(torch.rand(8, 16))
    with pytest.raises(ConfigError, match="on_epoch_begin"):
        manager.callbacks.on_train_end()


def test_the_manager_learns_steps():
    manager = training.prepare_compression(linear(), QuantizationAwareTrainingConfig(learned_step_size=True))
    manager.callbacks.on_train_begin()
    assert sum("step" in name for name, _ in manager.model.named_parameters()) == 2
    manager.model(torch.rand(8, 16)).mean().backward()
    manager.callbacks.on_train_end()
    assert manager.model[0].scheme.method.options == {"learned_step_size": True}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("config", [StaticQuantConfig(), RTNConfig(group_size=8), DynamicQuantConfig()], ids=str)
def test_models_in_half_precision_are_trained_in_it(config, learned, kind):
    model = prepare_qat(linear().to(kind), config, learned_step_size=learned)
    x = torch.randn(8, 16).to(kind)
    y = model(x)
    assert y.dtype == kind
    y.float().mean().backward()
    new = convert(model, quiet=True)
    torch.testing.assert_close(new(x).float(), y.detach().float(), atol=0.05, rtol=0.05)


def test_block_formats_with_a_calibrated_scale():
    model = prepare_qat(linear(32, 32), StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"))
    x = torch.randn(8, 32)
    model(x).mean().backward()
    expected = model.eval()(x).detach()
    torch.testing.assert_close(convert(model, quiet=True)(x), expected, atol=1e-4, rtol=1e-4)
