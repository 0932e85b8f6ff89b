"""autotune on the tuning loop."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError, NothingToQuantizeError
from neural_compressor.torch.quantization import (
    GPTQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    load,
    quantize,
)


def distance(reference, tokens):
    @torch.no_grad()
    def error(model):
        return float(sum((model(ids) - reference(ids)).square().mean() for ids in tokens)) + 1.0

    return error


def test_as_documented(stack, tokens, tmp_path):
    before = copy.deepcopy(stack.state_dict())
    tune_config = TuningConfig(
        config_set=RTNConfig(use_sym=[False, True], group_size=[32, 128]),
        tolerable_loss=0.2,
        max_trials=10,
        workspace=tmp_path,
    )
    q_model = autotune(stack, tune_config=tune_config, eval_fn=lambda model: 1.0)
    assert q_model.tuning.met
    assert len(q_model.tuning.trials) == 1, "the first configuration keeps the promise"
    assert all(torch.equal(v, stack.state_dict()[k]) for k, v in before.items())
    assert (tmp_path / "report.html").exists()
    q_model.save(tmp_path / "model")
    same = load(tmp_path / "model", stack)
    same.save(tmp_path / "again")
    again = load(tmp_path / "again", stack)
    with torch.no_grad():
        assert torch.equal(again(tokens[0]), q_model(tokens[0]))


def test_lower_is_better_and_the_best_is_returned(stack, tokens, run, tmp_path):
    error = distance(stack, tokens)
    tune_config = TuningConfig(
        config_set=[RTNConfig(bits=2), GPTQConfig(bits=3, group_size=16), RTNConfig(bits=8)],
        tolerable_loss=1e-4,
        higher_is_better=False,
        workspace=tmp_path,
    )
    q_model = autotune(stack, tune_config, eval_fn=error, run_fn=run)
    losses = [t.loss for t in q_model.tuning.trials]
    assert len(losses) == 3
    assert q_model.tuning.best.number == 3, losses
    assert q_model.tuning.met
    assert abs(error(q_model) - q_model.tuning.best.measurement.accuracy) < 1e-9


def test_a_missed_promise_returns_the_best(stack, tokens, tmp_path):
    tune_config = TuningConfig(
        config_set=RTNConfig(bits=[2, 3]),
        tolerable_loss=0.0,
        max_trials=2,
        higher_is_better=False,
        workspace=tmp_path,
    )
    q_model = autotune(stack, tune_config, eval_fn=distance(stack, tokens))
    assert not q_model.tuning.met
    assert q_model.tuning.best.number == 2


def test_another_evaluation_with_the_same_arguments_does_not_go_on_with_the_first(stack, tmp_path):
    config = TuningConfig(config_set=RTNConfig(bits=[2, 3]), tolerable_loss=0.5, workspace=tmp_path)
    first = autotune(stack, config, eval_fn=lambda model, value: value, eval_args=1.0)
    second = autotune(stack, config, eval_fn=lambda model, value: value + 1.0, eval_args=1.0)
    assert [q.tuning.baseline.accuracy for q in (first, second)] == [1.0, 2.0]


def test_the_evidence_is_complete(stack, tokens, tmp_path):
    config = TuningConfig(config_set=RTNConfig(bits=[3, 8]), tolerable_loss=0.0, max_trials=2, workspace=tmp_path)
    scores = iter([1.0, 0.5, 0.5])
    q_model = autotune(stack, config, eval_fn=lambda model: next(scores), example_inputs=tokens[0])
    found = q_model.tuning
    three, eight = (trial.measurement.output_sqnr for trial in found.trials)
    assert 0 < three < eight
    ops = {op.name: op for op in found.ops}
    assert "output head" in ops["lm_head"].reason
    assert "embedding" in ops["embed"].reason
    assert all(op.time_share > 0 for op in found.ops)
    assert found.metadata["configuration"]["config_set"] == ["RTNConfig(bits=[3, 8])"]
    names = {"float_model": stack}
    exec(found.metadata["loading"], names)
    assert torch.equal(names["model"](tokens[0]), q_model(tokens[0]))


def test_the_terminal_shows_the_run_unless_it_is_to_be_quiet(stack, tmp_path, capsys):
    def tuned(**how):
        config = TuningConfig(config_set=RTNConfig(), workspace=tmp_path / str(len(how)))
        autotune(stack, config, eval_fn=lambda model: 1.0, **how)
        return capsys.readouterr()

    out, err = tuned()
    assert "trial 1 [RTNConfig()]" in err
    assert "integers: 9 Linear" in out
    assert "float: 1 Linear (the output head" in out
    assert "promise met" in out
    assert err.count("integers:") == 0, "trials do not speak of their ops"
    assert tuned(quiet=True) == ("", "")


def test_without_run_fn_what_needs_no_data_is_tried(stack, tmp_path, caplog):
    tune_config = TuningConfig(config_set=[GPTQConfig(), RTNConfig()], workspace=tmp_path)
    q_model = autotune(stack, tune_config, eval_fn=lambda model: 1.0)
    assert [str(trial.stage) for trial in q_model.tuning.trials] == [str(RTNConfig())]
    assert "GPTQConfig() is not tried: it needs calibration data; give a run_fn" in caplog.text
    with pytest.raises(CalibrationError, match="give a run_fn"):
        autotune(stack, TuningConfig(config_set=[GPTQConfig()], workspace=tmp_path), eval_fn=lambda model: 1.0)


def test_a_configuration_that_fits_nothing_in_the_model_is_passed_over(tmp_path, caplog):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(8, 3, 10, 10)

    def tuned(*configs, run_fn=lambda model: model(x)):
        tune_config = TuningConfig(config_set=list(configs), workspace=tmp_path)
        return autotune(net, tune_config, eval_fn=lambda model: 1.0, run_fn=run_fn, quiet=True)

    q_model = tuned(RTNConfig(), SmoothQuantConfig(), StaticQuantConfig())
    assert [str(trial.stage) for trial in q_model.tuning.trials] == [str(StaticQuantConfig())]
    assert "RTNConfig() is not tried: a model of type Sequential has no linear layer" in caplog.text
    assert "the pass smooth has nothing to smooth" in caplog.text
    with pytest.raises(NothingToQuantizeError, match="no linear layer"):
        tuned(RTNConfig(), GPTQConfig())
    with pytest.raises(CalibrationError, match="that fits needs calibration data"):
        tuned(RTNConfig(), StaticQuantConfig(), run_fn=None)
    # what is wrong with a configuration itself is said, whatever else is on the list
    with pytest.raises(ConfigError, match="nowhere"):
        tuned(StaticQuantConfig(), StaticQuantConfig().set_local("nowhere", StaticQuantConfig(w_dtype="fp32")))
    with pytest.raises(ConfigError, match="asks for what cannot be done"):
        tuned(StaticQuantConfig(), StaticQuantConfig().set_local("0", RTNConfig()))


@pytest.mark.parametrize("winner", [0, 1])
def test_the_reasons_are_those_of_the_configuration_that_won(winner, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)).eval()
    x = torch.randn(8, 3, 8, 8)
    in_float = StaticQuantConfig(w_dtype="fp32", act_dtype="fp32")
    configs = [RTNConfig(), StaticQuantConfig().set_local("0", in_float)]

    def score(model):
        modes = {op.mode for op in model.quantization.plan.values()} if hasattr(model, "quantization") else set()
        return 0.5 if modes == {("static", "weight_only")[winner]} else 1.0

    tune_config = TuningConfig(config_set=configs, workspace=tmp_path)
    q_model = autotune(net, tune_config, eval_fn=score, run_fn=lambda model: model(x), quiet=True)
    expected = ("a convolution: weight-only algorithms", "its configuration leaves it in float")[winner]
    assert list(q_model.quantization.plan) == [("2", "Linear")]
    assert expected in q_model.quantization.reasons["0", "Conv2d"]
    assert [expected in op.reason for op in q_model.tuning.ops if op.name == "0"] == [True]


def test_smoothing_is_tried_on_the_data_alone(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    net[0].weight.data[:3] *= 60  # outliers, which smoothing is for
    x = torch.randn(64, 32)
    with torch.no_grad():
        expected = net(x)

    def error(model):
        with torch.no_grad():
            return float((model(x) - expected).square().mean())

    alphas = (0.1, 0.5, 0.9)
    alone = [
        error(quantize(copy.deepcopy(net), SmoothQuantConfig(alpha=alpha), lambda model: model(x), quiet=True))
        for alpha in alphas
    ]
    tune_config = TuningConfig(
        config_set=SmoothQuantConfig(alpha=list(alphas)),
        tolerable_loss=0.0,
        max_trials=3,
        higher_is_better=False,
        workspace=tmp_path,
    )
    best = autotune(net, tune_config, eval_fn=error, run_fn=lambda model: model(x), quiet=True)
    assert [trial.measurement.accuracy for trial in best.tuning.trials] == alone
    assert len(set(alone)) == 3
