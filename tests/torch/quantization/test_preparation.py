"""prepare, calibrate, convert: every algorithm, on any model."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import (
    CalibrationError,
    ConfigError,
    NothingToQuantizeError,
    QuantizationError,
    WorkspaceError,
)
from neural_compressor.torch.modules import QuantModule, WeightOnlyLinear
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TEQConfig,
    convert,
    finalize_calibration,
    prepare,
    prepare_qat,
    quantize,
)

CONFIGS = {
    "rtn": lambda: RTNConfig(bits=4, group_size=16),
    "rtn-search": lambda: RTNConfig(bits=4, group_size=16, use_mse_search=True),
    "rtn-importance": lambda: RTNConfig(bits=4, group_size=16, scale_search="importance"),
    "rtn-hadamard": lambda: RTNConfig(bits=4, group_size=16, hadamard=True),
    "gptq": lambda: GPTQConfig(bits=4, group_size=16),
    "gptq-order": lambda: GPTQConfig(bits=4, group_size=16, act_order=True),
    "gptq-best": lambda: GPTQConfig(
        bits=4, group_size=16, act_order=True, static_groups=True, use_mse_search=True, correct_upstream=True
    ),
    "gptq-sequential": lambda: GPTQConfig(bits=4, group_size=16, true_sequential=True),
    "awq": lambda: AWQConfig(bits=4, group_size=16),
    "awq-folding": lambda: AWQConfig(bits=4, group_size=16, folding=True),
    "teq": lambda: TEQConfig(bits=4, group_size=16),
    "hqq": lambda: HQQConfig(bits=4, group_size=16),
    "autoround": lambda: AutoRoundConfig(bits=4, group_size=16, iters=5),
}


def relative_error(actual, expected):
    return float(((actual - expected).norm() / expected.norm()).detach())


def quantized_names(model):
    return {name for name, m in model.named_modules() if isinstance(m, WeightOnlyLinear)}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_algorithm_on_a_stack_of_blocks(stack, tokens, run, name):
    reference = copy.deepcopy(stack)
    model = quantize(stack, CONFIGS[name](), run_fn=run)
    assert quantized_names(model) == {f"blocks.{i}.{n}" for i in range(3) for n in ("up", "gate", "down")}
    with torch.no_grad():
        assert relative_error(model(tokens[0]), reference(tokens[0])) < 0.1
    assert "quant_lm_head" in model.quantization.reasons["lm_head", "Linear"]


@pytest.mark.parametrize(
    "fields",
    [
        {"act_bits": 8},
        {"bits": 8, "act_bits": 8, "act_dynamic": False},
        {"scheme": "FP8_STATIC"},
        {"scheme": "INT8"},
        {"bits": 8},
    ],
    ids=str,
)
def test_the_output_head_is_quantized_where_that_is_said(stack, run, fields):
    sizes = {} if {"scheme", "act_dynamic"} & fields.keys() else {"group_size": 32}
    config = AutoRoundConfig(iters=0, disable_opt_rtn=True, **sizes, **fields)
    model = quantize(copy.deepcopy(stack), config, run_fn=run, quiet=True)
    assert type(model.lm_head) is nn.Linear
    assert "quant_lm_head" in model.quantization.reasons["lm_head", "Linear"]
    asked = AutoRoundConfig(iters=0, disable_opt_rtn=True, **sizes, **fields, quant_lm_head=True)
    for other in (
        asked,
        config.set_local("lm_head", AutoRoundConfig(iters=0, disable_opt_rtn=True, **sizes, **fields)),
    ):
        model = quantize(copy.deepcopy(stack), other, run_fn=run, quiet=True)
        assert model.lm_head.scheme.weight.dtype.bits in (4, 8)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_algorithm_on_a_plain_mlp(mlp, name):
    reference, x = copy.deepcopy(mlp), torch.randn(64, 16)
    model = quantize(mlp, CONFIGS[name](), run_fn=lambda m: m(x))
    assert quantized_names(model) == {"0", "2"}
    with torch.no_grad():
        assert relative_error(model(x), reference(x)) < 0.25


def test_prepare_calibrate_convert(stack, tokens):
    prepared = prepare(stack, GPTQConfig(group_size=16))
    for ids in tokens:
        prepared(ids)
    finalize_calibration(prepared)
    prepared(tokens[0])
    assert quantized_names(convert(prepared))


def test_gptq_beats_rtn(stack, tokens, run):
    errors = {}
    for name, config in {
        "rtn": RTNConfig(bits=2, group_size=16, use_sym=False),
        "gptq": GPTQConfig(bits=2, group_size=16, use_sym=False),
    }.items():
        model = quantize(copy.deepcopy(stack), config, run_fn=run)
        with torch.no_grad():
            errors[name] = sum(float((model(ids) - stack(ids)).square().sum()) for ids in tokens)
    assert errors["gptq"] < 0.8 * errors["rtn"]


def test_folding_leaves_no_scale_at_run_time(stack, tokens, run):
    reference = copy.deepcopy(stack)
    model = quantize(stack, AWQConfig(bits=4, group_size=16, folding=True), run_fn=run)
    assert all(m.input_scale is None for m in model.modules() if isinstance(m, WeightOnlyLinear))
    assert not torch.equal(model.blocks[0].norm.weight, reference.blocks[0].norm.weight)
    with torch.no_grad():
        assert relative_error(model(tokens[0]), reference(tokens[0])) < 0.1


def test_local_rules(stack, run):
    config = RTNConfig(group_size=16).set_local(r"blocks\.0\..*", RTNConfig(dtype="fp32"))
    config.set_local("lm_head", RTNConfig(bits=8, group_size=-1))
    model = quantize(stack, config)
    assert not {n for n in quantized_names(model) if n.startswith("blocks.0")}
    assert model.lm_head.scheme.weight.dtype.name == "int8"


def test_a_rule_that_matches_nothing_names_what_is_near():
    with pytest.raises(ConfigError, match="fc1"):
        prepare(_Fresh(), RTNConfig().set_local("fc2", RTNConfig()))


class _Fresh(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 4)


def test_a_model_that_is_itself_a_layer():
    layer, x = nn.Linear(32, 8), torch.randn(4, 32)
    with torch.no_grad():
        assert relative_error(quantize(copy.deepcopy(layer), RTNConfig(bits=8))(x), layer(x)) < 0.05


def test_what_is_left_in_float_is_listed():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(4, 8, 8))
            self.router = nn.Linear(8, 4)

        def forward(self, x):
            return torch.einsum("bi,eij,be->bj", x, self.weights, self.router(x).softmax(-1))

    model = quantize(Experts(), RTNConfig(group_size=8))
    (reason,) = [why for (name, _), why in model.quantization.reasons.items() if name == "weights"]
    assert "(4, 8, 8) that Experts works with directly" in reason


MISSING = {
    "gptq": GPTQConfig(group_size=8),
    "nvfp4 inputs": StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"),
}


@pytest.mark.parametrize("config", MISSING.values(), ids=MISSING)
def test_a_layer_that_calibration_missed_is_left_and_listed(config, caplog):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, use_b=False):
            return self.b(x) if use_b else self.a(x)

    model = quantize(Branch(), config, run_fn=lambda m: m(torch.randn(4, 8)))
    assert [isinstance(layer, QuantModule) for layer in (model.a, model.b)] == [True, False]
    assert model.quantization.reasons["b", "Linear"] == "calibration never reached it"
    assert "'b'" in caplog.text


def test_bad_input(stack, run):
    with pytest.raises(ConfigError, match="not prepared"):
        convert(stack)
    prepared = prepare(stack, GPTQConfig(group_size=16))
    with pytest.raises(ConfigError, match="prepared already"):
        prepare(prepared, GPTQConfig())
    with pytest.raises(CalibrationError, match="run the prepared model"):
        convert(prepared)


def test_numbers_that_are_none(stack):
    stack.blocks[1].up.weight.data[0, 0] = torch.nan
    with pytest.raises(QuantizationError, match=r"blocks\.1\.up\.weight"):
        prepare(stack, RTNConfig())


def test_infinity_in_calibration_names_the_layer(mlp):
    with pytest.raises(CalibrationError, match="'0'"):
        quantize(mlp, GPTQConfig(group_size=16), run_fn=lambda m: m(torch.full((4, 16), torch.inf)))


def test_a_group_that_does_not_divide_is_shorter_at_the_end():
    model = quantize(nn.Sequential(nn.Linear(20, 4)), RTNConfig(bits=8, group_size=16))
    assert model[0].weight_scale.shape == (4, 2)


def test_calibration_runs_the_model_once_and_then_where_its_output_is_looked_at(stack, tokens):
    runs = []
    stack.lm_head.register_forward_pre_hook(lambda module, args: runs.append(1))
    expected = [stack(ids) for ids in tokens]
    runs.clear()
    prepared = prepare(stack, GPTQConfig(group_size=16))
    outputs = [prepared(ids) for ids in tokens]
    assert len(runs) == 1
    assert all(torch.equal(output, wanted) for output, wanted in zip(outputs[:3], expected, strict=False))
    assert len(runs) == 3
    late, forward = outputs[-1], type(stack).forward
    converted = convert(prepared)
    assert converted.forward.__func__ is forward
    with pytest.raises(CalibrationError, match="after convert"):
        _ = late.shape


def test_calls_with_objects_run_at_once():
    class Counter:
        runs = 0

    class Counting(nn.Sequential):
        def forward(self, x, counter):
            counter.runs += 1
            return super().forward(x)

    counter, prepared = Counter(), prepare(Counting(nn.Linear(8, 8)), GPTQConfig(group_size=8))
    for _ in range(3):
        prepared(torch.randn(4, 8), counter)
    assert counter.runs == 3


def test_a_forward_of_the_models_own_comes_back(mlp):
    own = mlp.forward
    mlp.forward = lambda x: own(x * 2)
    replaced = mlp.forward
    prepared = prepare(mlp, GPTQConfig(group_size=16))
    assert prepared.forward is not replaced
    prepared(torch.randn(32, 16))
    assert finalize_calibration(prepared).forward is replaced


@pytest.mark.parametrize(
    "config",
    [
        GPTQConfig(group_size=16),
        StaticQuantConfig(),
        SmoothQuantConfig(),
        FP8Config(),
        GPTQConfig(group_size=16) + StaticQuantConfig(),
    ],
    ids=["gptq", "static", "smooth", "fp8", "composed"],
)
@pytest.mark.parametrize("batches", [0, 2])
def test_a_run_fn_that_raises_leaves_the_float_model(mlp, config, batches, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = torch.randn(32, 16)
    wanted, held, mode = mlp(x), set(vars(mlp)), mlp.training

    def fails(model):
        for _ in range(batches):
            model(x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(mlp, config, run_fn=fails)
    assert set(vars(mlp)) == held
    assert mlp.training == mode
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in mlp.modules())
    assert torch.equal(mlp(x), wanted)
    with pytest.raises(CalibrationError, match=r"run_fn .* raised RuntimeError at batch 0: mat1 and mat2"):
        quantize(mlp, config, run_fn=lambda model: model(torch.randn(2, 5)))
    assert set(vars(mlp)) == held
    assert quantize(mlp, config, run_fn=lambda model: model(x), quiet=True).quantization


@pytest.mark.parametrize("mode", ["AUTO", "MEASURE"])
def test_statistics_that_cannot_be_written_are_said_before_any_data_runs(mlp, mode, tmp_path):
    (tmp_path / "file").touch()
    held = set(vars(mlp))
    with pytest.raises(WorkspaceError, match=r"file/m_hooks_maxabs.json cannot be written"):
        prepare(mlp, FP8Config(mode=mode, dump_stats_path=str(tmp_path / "file" / "m")))
    assert set(vars(mlp)) == held
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in mlp.modules())


def test_products_in_bfloat16_change_little_and_give_float32(stack, tokens, run):
    half, full = (
        quantize(copy.deepcopy(stack), GPTQConfig(group_size=16, amp=amp), run_fn=run) for amp in (True, False)
    )
    a, b = (torch.cat([model(ids) for ids in tokens]) for model in (half, full))
    wanted = torch.cat([stack(ids) for ids in tokens])
    assert a.dtype == torch.float32
    assert (a - wanted).norm() < 1.2 * (b - wanted).norm()


def test_the_terminal_says_what_runs_how_and_why(stack, run, capsys):
    new = convert(prepare(stack, RTNConfig(), inplace=False))
    out, err = capsys.readouterr()
    assert out == ""
    assert f"integers: 9 Linear ({new.blocks[0].up.kernel})" in err
    assert "float: 1 Linear (the output head; quant_lm_head=True quantizes it)" in err
    assert "\x1b" not in err, "no colours where it is no terminal"
    quantize(stack, RTNConfig().set_local(r".*\.up", RTNConfig(dtype="fp32")), inplace=False)
    assert "float: 3 Linear (its configuration leaves it in float)" in capsys.readouterr().err
    quantize(stack, RTNConfig(), inplace=False, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("config", [FP8Config, RTNConfig, StaticQuantConfig], ids=lambda kind: kind.__name__)
def test_a_model_that_comes_back_in_training_mode_is_warned_of(config, caplog):
    x = torch.randn(8, 16)

    def quantized(*layers, training=True):
        caplog.clear()
        net = nn.Sequential(nn.Linear(16, 16), *layers, nn.Linear(16, 4)).train(training)
        new = quantize(net, config(), run_fn=lambda model: model(x), quiet=True)
        assert new.training == training
        return caplog.text

    said = "in training mode, as the float model was, in which 1 of its modules (2, a Dropout, first)"
    assert said in quantized(nn.ReLU(), nn.Dropout(0.1))
    assert "call .eval() on it" in caplog.text
    assert "training mode" not in quantized(nn.ReLU(), nn.Dropout(0.1), training=False)
    assert "training mode" not in quantized(nn.ReLU(), nn.Dropout(0.0)), "it drops nothing"
    # folded into the layer before it where integers are asked for, and live elsewhere
    assert ("BatchNorm1d" in quantized(nn.BatchNorm1d(16))) == (config is not StaticQuantConfig)


@pytest.mark.parametrize("config", [FP8Config, RTNConfig, StaticQuantConfig], ids=lambda kind: kind.__name__)
def test_modules_come_back_in_the_modes_they_had(config):
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4)).train()
    net[2].eval()
    new = quantize(net, config(), run_fn=lambda model: model(torch.randn(8, 16)), quiet=True)
    assert [new.training, *(module.training for module in new)] == [True, True, True, False, True]


def test_a_rule_with_other_smoothing_may_cover_every_layer_that_is_smoothed():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    ids = torch.arange(8).reshape(2, 4)

    def smoothed(config):
        return quantize(copy.deepcopy(net), config, lambda model: model(ids), quiet=True)

    ruled = smoothed(SmoothQuantConfig(alpha=0.2).set_local(nn.Linear, SmoothQuantConfig(alpha=0.7)))
    plain = smoothed(SmoothQuantConfig(alpha=0.7))
    assert [step.options["alpha"] for step in ruled.quantization.plan.passes if step.name == "smooth"] == [0.7]
    assert torch.equal(ruled(ids), plain(ids))
    assert not torch.equal(ruled(ids), smoothed(SmoothQuantConfig(alpha=0.2))(ids))


@pytest.mark.parametrize(
    "config",
    [
        StaticQuantConfig(act_algo="kl"),
        StaticQuantConfig(act_sym=True),
        StaticQuantConfig(act_dtype="uint4"),
        DynamicQuantConfig(w_granularity="per_channel"),
        StaticQuantConfig().set_local("0", StaticQuantConfig(act_algo="kl")),
    ],
    ids=str,
)
def test_what_is_said_of_other_layers_leaves_look_ups_quantized(config):
    net = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 4)).eval()
    q_model = quantize(net, config, run_fn=lambda model: model(torch.arange(8)), quiet=True)
    weight = q_model.quantization.plan["0", "Embedding"].weight
    assert (weight.dtype.name, weight.granularity.name) == ("uint8", "per_channel")


def test_what_a_look_up_cannot_have_is_what_was_said():
    net = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 4)).eval()
    rules = StaticQuantConfig().set_local("0", StaticQuantConfig(w_granularity="per_tensor"))
    with pytest.raises(ConfigError, match="for weight granularity 'per_tensor'"):
        prepare(net, rules)


def test_a_batch_without_samples_is_no_calibration():
    model = prepare(nn.Sequential(nn.Linear(16, 4)), StaticQuantConfig())
    model(torch.empty(0, 16))
    with pytest.raises(CalibrationError, match="calibration reached none of the ops to quantize"):
        convert(model)


def test_convert_takes_no_other_configuration_than_prepare():
    model = prepare(nn.Sequential(nn.Linear(32, 8)).eval(), RTNConfig(bits=4))
    with pytest.raises(ConfigError, match=r"prepared with RTNConfig\(\), and quant_config is RTNConfig\(bits=8\)"):
        convert(model, RTNConfig(bits=8))
    assert quantized_names(convert(model, {"rtn": {"bits": 4}}, quiet=True)) == {"0"}


def test_convert_takes_the_schemes_that_prepare_qat_was_given():
    schemes = {nn.Linear: "MXFP4"}
    model = prepare_qat(nn.Sequential(nn.Linear(32, 8)), schemes)
    with pytest.raises(ConfigError, match="prepared with"):
        convert(model, {nn.Linear: "MXFP8"})
    assert isinstance(convert(model, schemes, quiet=True)[0], QuantModule)


def test_a_model_of_subclassed_layers_alone_is_refused_with_the_reason():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Embedding(4, 8), Own(8, 8))
    with pytest.raises(
        NothingToQuantizeError, match=r"no linear layer.*'1' \(Own\): a subclass of Linear with behaviour of"
    ):
        prepare(model, RTNConfig())


@pytest.mark.parametrize("config", [StaticQuantConfig(), GPTQConfig(group_size=8)], ids=["static", "gptq"])
def test_a_model_is_copied_before_and_after_its_calibration_and_not_meanwhile(mlp, config):
    prepared, x = prepare(mlp, config), torch.randn(64, 16)
    prepared(x)
    with pytest.raises(ConfigError, match="being calibrated cannot be copied"):
        copy.deepcopy(prepared)
    twin = copy.deepcopy(finalize_calibration(prepared))
    assert torch.equal(convert(twin)(x), convert(prepared)(x))


@pytest.mark.parametrize("wrap", [nn.DataParallel, nn.Sequential])
def test_a_module_around_a_prepared_model_is_refused_with_where_that_is(mlp, wrap):
    prepared = prepare(mlp, GPTQConfig())
    outer = wrap(prepared)
    outer(torch.randn(8, 16))
    place = "model.module" if wrap is nn.DataParallel else "model.0"
    calls = [convert, finalize_calibration]
    calls += [lambda model, call=call: call(model, GPTQConfig()) for call in (convert, prepare)]
    for call in calls:
        with pytest.raises(ConfigError, match=rf"inside of this {wrap.__name__}: pass {place}"):
            call(outer)
    assert isinstance(convert(prepared)[0], QuantModule)
