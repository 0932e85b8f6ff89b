"""autotune on exported graphs: plans tried and evaluated as converted graphs, single ops back to float."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.testing import AdaptorContract
from neural_compressor.torch.export import export
from neural_compressor.torch.pt2e.adaptor import ExportedAdaptor
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    load,
)
from neural_compressor.tuning.metrics import METRICS


class Fragile(nn.Module):
    """The input of ``weak`` has an outlier, so that 8 bits leave nothing of the rest."""

    def __init__(self):
        super().__init__()
        self.first, self.weak, self.last = nn.Linear(8, 8), nn.Linear(9, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        far = torch.full_like(x[:, :1], 1e4)
        return self.last(self.weak(torch.cat([x, far], 1)) - far * self.weak.weight[:, -1])


@pytest.fixture
def fragile():
    torch.manual_seed(0)
    return Fragile(), torch.randn(64, 8)


def closeness(reference, x):
    expected = reference(x).detach()

    def score(model):
        with torch.no_grad():
            return float(1 - (model(x) - expected).square().mean() / expected.square().mean())

    return score


def test_a_single_op_goes_back_to_float(fragile, tmp_path):
    model, x = fragile
    exported = export(model, x)
    score = closeness(model, x)
    tune_config = TuningConfig(config_set=[StaticQuantConfig()], tolerable_loss=0.05, workspace=tmp_path)
    q_model = autotune(exported, tune_config, eval_fn=score, run_fn=lambda m: m(x), quiet=True)
    result = q_model.tuning
    assert result.met
    assert not result.trials[0].passed  # as it was configured it is far off
    assert ("weak", "Linear") not in q_model.quantization.plan
    assert ("first", "Linear") in q_model.quantization.plan
    assert result.best.measurement.accuracy == pytest.approx(score(q_model), rel=1e-6)
    assert "tuning" in next(op.reason for op in result.ops if op.name == "weak")
    assert torch.equal(exported(x), model(x))  # the float graph is untouched
    q_model.save(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(x), q_model(x))


def test_static_and_dynamic_configurations_are_tried_in_turn(mlp, tmp_path):
    x = torch.randn(16, 16)
    seen = []

    def score(model):
        modes = {op.mode for op in model.quantization.plan.values()} if hasattr(model, "quantization") else set()
        seen.append(modes)
        return 0.5 if "static" in modes else 1.0

    tune_config = TuningConfig(config_set=[StaticQuantConfig(), DynamicQuantConfig()], workspace=tmp_path)
    q_model = autotune(export(mlp, x), tune_config, eval_fn=score, run_fn=lambda m: m(x), quiet=True)
    assert seen[:3] == [set(), {"static"}, {"dynamic"}]
    assert {op.mode for op in q_model.quantization.plan.values()} == {"dynamic"}
    assert q_model.tuning.met


class TestReasonsAreThoseOfTheWinner:
    """Convolutions have a static int8 form and no dynamic one."""

    @pytest.fixture
    def tuned(self, cnn, tmp_path):
        x = torch.randn(4, 3, 8, 8)
        configs = [StaticQuantConfig(), DynamicQuantConfig()]

        def run(keeps_the_promise):
            def score(model):
                return 1.0 if not hasattr(model, "quantization") or keeps_the_promise(model.quantization.plan) else 0.5

            tune_config = TuningConfig(config_set=configs, workspace=tmp_path)
            q_model = autotune(export(cnn, x), tune_config, eval_fn=score, run_fn=lambda m: m(x))
            ops = [(op.name, op.op_type) for op in q_model.tuning.ops]
            assert sorted(ops) == [("body", "Conv2d"), ("head", "Linear"), ("stem", "Conv2d")]  # each op once
            return q_model.quantization

        return run

    def test_the_first(self, tuned, capsys):
        done = tuned(lambda plan: True)
        assert len(done.plan) == 3
        assert done.reasons == {}
        shown = capsys.readouterr().out
        assert "integers: 2 Conv2d" in shown
        assert "float:" not in shown

    def test_the_second(self, tuned):
        done = tuned(lambda plan: plan["head", "Linear"].mode == "dynamic")
        assert list(done.plan) == [("head", "Linear")]
        assert done.reasons.keys() == {("stem", "Conv2d"), ("body", "Conv2d")}
        assert all("no capability for approach 'dynamic'" in why for why in done.reasons.values())

    def test_the_first_with_an_op_back_in_float(self, tuned):
        done = tuned(lambda plan: ("stem", "Conv2d") in plan and ("body", "Conv2d") not in plan)
        assert done.plan.keys() == {("stem", "Conv2d"), ("head", "Linear")}
        assert done.reasons == {("body", "Conv2d"): "tuning has it in float"}


def test_a_run_goes_on_where_it_was(mlp, tmp_path):
    x = torch.randn(16, 16)
    tune_config = TuningConfig(config_set=[DynamicQuantConfig()], workspace=tmp_path)
    first = autotune(export(mlp, x), tune_config, eval_fn=closeness(mlp, x), quiet=True)
    again = autotune(export(mlp, x), tune_config, eval_fn=closeness(mlp, x), quiet=True)
    assert torch.equal(first(x), again(x))


class TestBadInput:
    @pytest.fixture
    def tune(self, mlp, tmp_path):
        def run(config, **more):
            tune_config = TuningConfig(config_set=[config], workspace=tmp_path)
            return autotune(export(mlp, torch.randn(2, 16)), tune_config, eval_fn=lambda m: 1.0, **more)

        return run

    def test_no_data(self, tune):
        with pytest.raises(CalibrationError, match="give a run_fn"):
            tune(StaticQuantConfig())

    def test_a_run_fn_that_runs_nothing(self, tune):
        with pytest.raises(CalibrationError, match="3 static ops need calibration"):
            tune(StaticQuantConfig(), run_fn=lambda m: None)

    def test_what_no_graph_runs(self, tune):
        with pytest.raises(ConfigError, match="weights are not quantized alone"):
            tune(RTNConfig())


class TestExportedAdaptor(AdaptorContract):
    def make_adaptor(self):
        return ExportedAdaptor()

    def make_model(self):
        torch.manual_seed(0)
        conv = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        model = nn.Sequential(*conv, nn.Flatten(), nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
        return export(model, torch.zeros(8, 1, 8, 8))

    def make_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        return [
            (torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator))
            for _ in range(4)
        ]

    def make_metric(self):
        return METRICS["accuracy"]()
