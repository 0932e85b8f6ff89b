"""``quantization.fit`` from end to end on PyTorch models, as a user calls it."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neural_compressor import quantization
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import (
    CalibrationError,
    CapabilityError,
    ConfigError,
    EvaluationError,
    QuantizationError,
    WorkspaceError,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc1, self.fc10 = nn.Linear(64, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc10(self.fc1(self.conv(x).relu().mean(1).flatten(1)).relu())


@pytest.fixture(scope="module")
def task():
    """A trained model and its data."""
    torch.manual_seed(0)
    x = torch.randn(192, 1, 8, 8)
    y = (x.mean((1, 2, 3)) * 8).clamp(-1, 1).round().long() + 1
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), DataLoader(TensorDataset(x, y), batch_size=32)


@pytest.fixture
def evaluate(task):
    def accuracy(model):
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in task[1])
        return hits / len(task[1].dataset)

    return accuracy


@pytest.fixture
def fit(task, tmp_path):
    def call(conf, *, model=None, data=..., **kwargs):
        data = task[1] if data is ... else data
        kwargs = {"quiet": True, "workspace": tmp_path / "ws", **kwargs}
        return quantization.fit(model or task[0], conf, calib_dataloader=data, **kwargs)

    return call


def precisions(q_model):
    return {record.name: record.precision for record in q_model.result.ops}


@pytest.mark.parametrize("approach", ["static", "dynamic", "auto"])
def test_approaches_save_and_load(fit, task, evaluate, tmp_path, approach):
    conf = PostTrainingQuantConfig(approach=approach, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.05))
    q_model = fit(conf, eval_func=evaluate)
    assert q_model.result.met, q_model.verdict
    assert precisions(q_model)["fc1"] == "int8"
    assert not any(record.simulated for record in q_model.result.ops)
    q_model.save(tmp_path / "out")
    x = next(iter(task[1]))[0]
    again = quantization.load(tmp_path / "out", task[0])
    assert torch.equal(again(x), q_model(x))
    assert (tmp_path / "ws" / "report.html").exists()


def test_the_evidence_has_the_exactness_of_each_trial_and_the_time_of_each_op(fit, evaluate):
    result = fit(PostTrainingQuantConfig(), eval_func=evaluate).result
    assert result.baseline.output_sqnr is None
    assert all(trial.measurement.output_sqnr > 10 for trial in result.trials)
    assert all(0 < op.time_share < 1 and 0 < op.float_time_share < 1 for op in result.ops)
    assert result.metadata["batch_size"] == 32
    assert result.metadata["environment"]["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("evaluated", [True, False], ids=["tuned", "quantized once"])
def test_the_report_tells_how_to_load_the_model(fit, task, evaluate, evaluated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    q_model = fit(PostTrainingQuantConfig(), eval_func=evaluate if evaluated else None)
    names = {"float_model": task[0], "q_model": q_model}
    exec(q_model.result.metadata["loading"], names)
    x = next(iter(task[1]))[0]
    assert torch.equal(names["model"](x), q_model(x))


def test_calib_func(fit, task, evaluate):
    def calibrate(model):
        for x, _ in task[1]:
            model(x)

    q_model = fit(PostTrainingQuantConfig(), data=None, calib_func=calibrate, eval_func=evaluate)
    assert precisions(q_model)["conv"] == "int8"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("domain", "nlp"),
        ("backend", "ipex"),
        ("inputs", ["x"]),
        ("outputs", ["y"]),
        ("device", "gpu"),
        ("accuracy_criterion", AccuracyCriterion(tolerable_loss=0.05)),
        ("tuning_criterion", TuningCriterion(max_trials=3)),
        ("quant_level", 1),
    ],
)
def test_a_setting_without_effect_is_refused(fit, setting, value):
    with pytest.raises(ConfigError, match=setting):
        fit(PostTrainingQuantConfig(**{setting: value}))


def test_data_that_would_not_be_read_is_refused(fit, task, evaluate):
    with pytest.raises(ConfigError, match="calib_func would not be called"):
        fit(PostTrainingQuantConfig(approach="dynamic"), data=None, calib_func=lambda model: None)
    with pytest.raises(ConfigError, match="eval_dataloader and eval_metric would not be read"):
        fit(PostTrainingQuantConfig(), eval_func=evaluate, eval_dataloader=task[1], eval_metric="accuracy")


def test_a_function_calibrates_and_a_loader_shows_how_the_model_is_called(fit, task):
    def calibrate(model):
        for x, _ in list(task[1])[:2]:
            model(x)

    both, alone = (
        fit(PostTrainingQuantConfig(), calib_func=calibrate),
        fit(PostTrainingQuantConfig(), data=list(task[1])[:2]),
    )
    x = next(iter(task[1]))[0]
    assert torch.equal(both(x), alone(x))
    assert both.result.metadata["batch_size"] == 32


def test_metric_and_dataloader(fit, task):
    q_model = fit(PostTrainingQuantConfig(), eval_dataloader=task[1], eval_metric="accuracy")
    assert 0.9 <= q_model.result.baseline.accuracy <= 1


def test_no_evaluation_is_one_default_quantization(fit):
    q_model = fit(PostTrainingQuantConfig())
    assert len(q_model.result.trials) == 1
    assert set(precisions(q_model).values()) == {"int8"}


@pytest.mark.parametrize("strategy", ["basic", "conservative", "auto", "random", "exhaustive"])
def test_strategies_keep_the_promise(fit, evaluate, strategy):
    criterion = TuningCriterion(strategy=strategy, max_trials=6)
    conf = PostTrainingQuantConfig(
        tuning_criterion=criterion, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.05), quant_level=1
    )
    q_model = fit(conf, eval_func=evaluate)
    assert q_model.result.met, q_model.verdict
    assert "int8" in precisions(q_model).values()


def test_conservative_goes_on_while_the_promise_holds(fit, evaluate):
    conf = PostTrainingQuantConfig(quant_level=0, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.1))
    q_model = fit(conf, eval_func=evaluate)
    assert len(q_model.result.trials) == 2, "first the convolutions, then the linear layers too"
    assert set(q_model.result.trials[-1].plan[("fc1", "Linear")].to_dict()["weight"].values()) >= {"int8"}


def test_a_promise_that_needs_an_op_in_float(fit, task):
    """The evaluation fails exactly while fc1 is quantized."""

    def fussy(model):
        return 0.5 if type(model.fc1) is not nn.Linear else 1.0

    q_model = fit(
        PostTrainingQuantConfig(quant_level=1, tuning_criterion=TuningCriterion(max_trials=100)), eval_func=fussy
    )
    assert q_model.result.met, q_model.verdict
    assert precisions(q_model) == {"conv": "int8", "fc1": "fp32", "fc10": "int8"}
    reason = next(record.reason for record in q_model.result.ops if record.name == "fc1")
    assert reason


def test_a_missed_promise_returns_the_best_model(fit, task):
    base = task[0]

    def strict(model):
        return 1.0 if model is base else 0.5

    criterion = TuningCriterion(max_trials=5)
    q_model = fit(PostTrainingQuantConfig(tuning_criterion=criterion), eval_func=strict)
    assert not q_model.result.met
    assert "not met" in q_model.verdict
    assert q_model(next(iter(task[1]))[0]).shape == (32, 3)


def test_lower_is_better_and_absolute(fit, evaluate):
    accuracy = AccuracyCriterion(higher_is_better=False, criterion="absolute", tolerable_loss=0.05)
    q_model = fit(PostTrainingQuantConfig(accuracy_criterion=accuracy), eval_func=lambda m: 1 - evaluate(m))
    assert q_model.result.met, q_model.verdict


@pytest.mark.parametrize(
    "objective",
    [
        "accuracy",
        "modelsize",
        "footprint",
        ["performance", "modelsize"],
        {"objective": ["accuracy", "modelsize"], "weight": [0.2, 0.8], "higher_is_better": [True, False]},
    ],
    ids=str,
)
def test_objectives(fit, evaluate, objective):
    criterion = TuningCriterion(objective=objective, max_trials=3, timeout=60)
    conf = PostTrainingQuantConfig(
        tuning_criterion=criterion, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.2), quant_level=1
    )
    q_model = fit(conf, eval_func=evaluate)
    passing = [t for t in q_model.result.trials if t.passed]
    assert len(q_model.result.trials) == 3, "with a timeout tuning goes on after the first pass"
    # Of the passing ones the best within the noise of its own score and the highest; which those are differs by machine.
    best, top = q_model.result.best, max(passing, key=lambda t: t.score)
    assert top.score - best.score <= max(top.noise, best.noise)


def test_calibration_sizes_are_tuned(fit, task):
    base, sizes = task[0], []

    def never(model):
        return 1.0 if model is base else 0.0

    criterion = TuningCriterion(max_trials=60)
    q_model = fit(
        PostTrainingQuantConfig(calibration_sampling_size=[32, 64], tuning_criterion=criterion, quant_level=1),
        eval_func=never,
    )
    sizes = {t.plan.calib_sampling_size for t in q_model.result.trials}
    assert sizes == {32, 64}


INT4 = """
int4: {
    'static': {
        'Conv2d': {
            'weight': {'dtype': ['int4'], 'scheme': ['sym'], 'granularity': ['per_channel'], 'algorithm': ['minmax']},
            'activation': {'dtype': ['uint4'], 'scheme': ['sym'], 'granularity': ['per_tensor'], 'algorithm': ['minmax']},
        },
    }
}
"""


def test_a_data_type_from_the_users_yaml(fit, tmp_path):
    (tmp_path / "mine.yaml").write_text(INT4)
    rules = {"Conv2d": {"weight": {"dtype": ["int4"]}, "activation": {"dtype": ["uint4"]}}}
    q_model = fit(PostTrainingQuantConfig(op_type_dict=rules, framework_yaml=str(tmp_path / "mine.yaml")))
    record = next(r for r in q_model.result.ops if r.name == "conv")
    assert (record.precision, record.activation, record.simulated) == ("int4", "uint4", True)
    assert precisions(q_model)["fc1"] == "int8"


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize(("op_type", "name"), [("Linear", "fc1"), ("Conv2d", "conv")])
def test_every_bit_width(fit, bits, op_type, name):
    rules = {op_type: {"weight": {"dtype": [f"int{bits}"]}, "activation": {"dtype": [f"uint{bits}"]}}}
    q_model = fit(PostTrainingQuantConfig(op_type_dict=rules))
    record = next(r for r in q_model.result.ops if r.name == name)
    assert (record.precision, record.simulated) == (f"int{bits}", True)


def test_names_are_matched_whole(fit):
    rules = {"fc1": {"weight": {"dtype": ["fp32"]}, "activation": {"dtype": ["fp32"]}}}
    q_model = fit(PostTrainingQuantConfig(op_name_dict=rules))
    assert precisions(q_model) == {"conv": "int8", "fc1": "fp32", "fc10": "int8"}
    assert "fc1" in next(r.reason for r in q_model.result.ops if r.name == "fc1")


def test_excluded_precisions(fit, task):
    base = task[0]
    conf = PostTrainingQuantConfig(
        excluded_precisions=["bf16"], quant_level=1, tuning_criterion=TuningCriterion(max_trials=80)
    )
    q_model = fit(conf, eval_func=lambda m: 1.0 if m is base else 0.0)
    used = {scheme.precision for trial in q_model.result.trials for scheme in trial.plan.values()}
    assert "bf16" not in used
    assert "fp32" in used


def test_a_model_in_training_mode_and_an_evaluation_that_leaves_it_there(fit, task):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def careless(candidate):
        candidate.eval()
        with torch.no_grad():
            score = sum(float(candidate(x).sum()) for x, _ in task[1])
        candidate.train()
        return 100 + score

    q_model = fit(PostTrainingQuantConfig(), model=model.train(), eval_func=careless)
    assert q_model.result.met, q_model.verdict
    assert not q_model.model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


# -- bad input ------------------------------------------------------------------------------------------------------


def test_configuration_errors_come_before_any_work(fit, evaluate):
    def must_not_run(model):
        raise AssertionError("evaluated before the configuration was checked")

    rules = {"Conv2d": {"weight": {"dtype": ["nf4"]}}}
    with pytest.raises(CapabilityError, match="int8"):
        fit(PostTrainingQuantConfig(op_type_dict=rules), eval_func=must_not_run)
    with pytest.raises(ConfigError, match="fc10"):
        fit(PostTrainingQuantConfig(op_name_dict={"fc100": {"weight": {"dtype": ["fp32"]}}}), eval_func=must_not_run)
    with pytest.raises(ConfigError, match="basic"):
        fit(PostTrainingQuantConfig(tuning_criterion=TuningCriterion(strategy="basik")), eval_func=must_not_run)
    with pytest.raises(ConfigError, match="max_trials"):
        TuningCriterion(max_trials=0)
    with pytest.raises(ConfigError, match="performance"):
        TuningCriterion(objective="speed")
    with pytest.raises(ConfigError, match="banana"):
        PostTrainingQuantConfig(op_type_dict={"Conv2d": {"weight": {"dtype": ["banana"]}}})
    with pytest.raises(ConfigError, match="eval_metric"):
        fit(PostTrainingQuantConfig(), eval_dataloader=[])
    with pytest.raises(CalibrationError, match="calib_dataloader"):
        fit(PostTrainingQuantConfig(), data=None)


def test_the_first_and_last_product_can_be_kept_in_float(fit):
    recipes = {"first_conv_or_matmul_quantization": False, "last_conv_or_matmul_quantization": False}
    q_model = fit(PostTrainingQuantConfig(recipes=recipes))
    assert precisions(q_model) == {"conv": "fp32", "fc1": "int8", "fc10": "fp32"}
    assert "recipe" in next(r.reason for r in q_model.result.ops if r.name == "conv")


def test_recipes_that_are_not_there_are_refused(fit):
    with pytest.raises(ConfigError, match="dedicated_qdq_pair"):
        fit(PostTrainingQuantConfig(recipes={"dedicated_qdq_pair": True}))


@pytest.mark.parametrize(
    "settings", [{"device": "gpu"}, {"backend": "onnxrt_trt_ep"}, {"quant_format": "QDQ"}], ids=str
)
def test_settings_of_other_frameworks_are_refused(fit, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        fit(PostTrainingQuantConfig(**settings))


def test_errors_of_ops_are_there_whether_or_not_they_are_asked_for(fit):
    q_model = fit(PostTrainingQuantConfig(diagnosis=True))
    assert all(op.output_sqnr is not None for op in q_model.result.ops if op.precision == "int8")


def test_an_iterator_is_refused(fit, task):
    with pytest.raises(ConfigError, match="calib_dataloader"):
        fit(PostTrainingQuantConfig(), data=iter(task[1]))


def test_data_errors(fit, task):
    with pytest.raises(CalibrationError, match="empty"):
        fit(PostTrainingQuantConfig(), data=[])
    with pytest.raises(CalibrationError, match="does not fit"):
        fit(PostTrainingQuantConfig(), data=[(torch.randn(2, 7), 0)])
    with pytest.raises(CalibrationError, match="input 'x' holds NaN"):
        fit(PostTrainingQuantConfig(), data=[(torch.full((2, 1, 8, 8), torch.nan), 0)])


@pytest.mark.parametrize("value", [None, float("nan"), "good", torch.zeros(3)], ids=str)
def test_bad_evaluations(fit, value):
    with pytest.raises(EvaluationError):
        fit(PostTrainingQuantConfig(), eval_func=lambda model: value)


def test_a_tensor_with_one_number_is_a_number(fit):
    assert fit(PostTrainingQuantConfig(), eval_func=lambda model: torch.tensor(0.5)).result.met


def test_an_evaluation_that_raises(fit):
    def broken(model):
        raise ZeroDivisionError("oops")

    with pytest.raises(EvaluationError, match=r"broken.*oops"):
        fit(PostTrainingQuantConfig(), eval_func=broken)


def test_models_that_cannot_be_quantized(fit):
    with pytest.raises(ConfigError, match="nothing in the model can be quantized"):
        fit(PostTrainingQuantConfig(), model=nn.Sequential(nn.ReLU()))
    sick = Net().eval()
    sick.fc1.weight.data[0, 0] = torch.nan
    with pytest.raises(QuantizationError, match=r"fc1\.weight"):
        fit(PostTrainingQuantConfig(), model=sick)
    with pytest.raises(ConfigError, match="no adaptor handles"):
        fit(PostTrainingQuantConfig(), model="a string")


def test_a_workspace_that_cannot_be_written(fit, evaluate, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="file"):
        fit(PostTrainingQuantConfig(), eval_func=evaluate, workspace=tmp_path / "file" / "ws")


def test_a_report_that_cannot_be_written_does_not_cost_the_model(fit, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)  # as the report is put in its place
    q_model = fit(PostTrainingQuantConfig(), quiet=False)
    assert set(precisions(q_model).values()) == {"int8"}
    assert q_model.result.report is None
    assert "the report of this run is lost" in capsys.readouterr().out


# -- stop and go on -------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time, torch
from torch import nn
from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.torch.modules.kernels.race import racing
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
data = [(torch.randn(4, 8), 0)]
count = 0

def evaluate(candidate):
    global count
    count += 1
    print("evaluated", flush=True)
    time.sleep(0.15)
    return 1.0 if candidate is model else 0.5 + 0.01 * sum(type(m) is nn.Linear for m in candidate.modules())

conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=TuningCriterion(max_trials=12))
with racing(None):  # how many trials there are must not depend on the machine
    result = quantization.fit(model, conf, data, eval_func=evaluate, workspace=sys.argv[1], quiet=True).result
trials = result.trials
print("RESULT", count, len(trials), sum(t.resumed for t in trials), [t.plan.digest for t in trials])
"""


def test_killed_tuning_goes_on_where_it_stopped(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def start(workspace):
        command = [sys.executable, str(script), str(tmp_path / workspace)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def finish(process):
        out = process.communicate(timeout=600)[0]
        line = next(line for line in out.splitlines() if line.startswith("RESULT"))
        return line.removeprefix("RESULT ").split(" ", 3)

    victim = start("killed")
    for _ in range(6):
        victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    time.sleep(0.1)
    evaluated, trials, resumed, plans = finish(start("killed"))
    _, whole_trials, _, whole_plans = finish(start("whole"))
    assert (trials, plans) == (whole_trials, whole_plans)
    assert int(resumed) >= 4
    assert int(evaluated) == 1 + int(trials) - int(resumed), "the baseline is looked at again, and no trial"


@pytest.mark.parametrize(
    ("rule", "method"),
    [
        ({"weight": {"bits": 4, "algorithm": "RTN"}}, "rtn"),
        ({"weight": {"bits": 4, "algorithm": "GPTQ", "group_size": 32}}, "gptq"),
        ({"weight": {"bits": 4}, "activation": {"dtype": "fp32"}}, "rtn"),
    ],
)
def test_weights_alone_beside_static_ops(fit, rule, method):
    q_model = fit(PostTrainingQuantConfig(approach="static", op_type_dict={"Linear": rule}))
    plan = {name: scheme for (name, _), scheme in q_model.model.quantization.plan.items()}
    assert plan["conv"].mode == "static"
    for name in ("fc1", "fc10"):
        assert (plan[name].mode, plan[name].weight.dtype.bits, plan[name].method.name) == ("weight_only", 4, method)
    few_bits = fit(PostTrainingQuantConfig(approach="static", op_type_dict={"Linear": {"weight": {"bits": 4}}}))
    assert {scheme.mode for scheme in few_bits.model.quantization.plan.values()} == {"static"}
