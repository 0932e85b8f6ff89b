"""Quantization-aware training as a user calls it."""

import pytest
import torch
from torch import nn

from neural_compressor import training
from neural_compressor.config import AccuracyCriterion, QuantizationAwareTrainingConfig, TuningCriterion
from neural_compressor.errors import CalibrationError, ConfigError


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("backend", "ipex"),
        ("device", "gpu"),
        ("inputs", ["x"]),
        ("outputs", ["y"]),
        ("model_name", "net"),
        ("quant_level", 1),
        ("accuracy_criterion", AccuracyCriterion(tolerable_loss=0.1)),
        ("tuning_criterion", TuningCriterion(max_trials=2)),
    ],
)
def test_a_setting_without_effect_is_refused(model, setting, value):
    with pytest.raises(ConfigError, match=f"does not apply {setting}"):
        training.prepare_compression(model, QuantizationAwareTrainingConfig(**{setting: value}))


def test_settings_at_their_defaults_pass(model):
    conf = QuantizationAwareTrainingConfig(backend="default", inputs=[], accuracy_criterion=AccuracyCriterion())
    assert training.prepare_compression(model, conf).model is model


@pytest.mark.parametrize("called", ["nothing", "the float model", "in eval mode"])
def test_training_that_saw_no_batch_is_refused_and_can_go_on(model, called, tmp_path):
    manager = training.prepare_compression(model, QuantizationAwareTrainingConfig())
    manager.callbacks.on_train_begin()
    x = torch.rand(4, 8)
    if called == "the float model":
        model(x)
    elif called == "in eval mode":
        manager.model.eval()(x)
    with pytest.raises(CalibrationError, match="no batch has run"):
        manager.callbacks.on_train_end()
    with pytest.raises(ConfigError, match="no quantized model yet"):
        manager.save(tmp_path / "model")
    manager.model.train()(x)
    manager.callbacks.on_train_end()
    assert {m.scheme.precision for m in (manager.model[0], manager.model[2])} == {"int8"}


def test_the_data_of_a_training_shows_what_can_be_folded():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.last, self.last_norm = (
                nn.Linear(4, 4),
                nn.BatchNorm1d(4),
                nn.Linear(4, 4),
                nn.BatchNorm1d(4),
            )

        def forward(self, x):
            y = self.fc(x)
            return self.last_norm(self.last(self.norm(y) if x.mean() > 0 else y))

    def folded(data, **kwargs):
        manager = training.prepare_compression(Branch().eval(), QuantizationAwareTrainingConfig(), **kwargs)
        manager.callbacks.on_train_begin(data)
        return {name for name, m in manager.model.named_modules() if isinstance(m, nn.Identity)}

    x = torch.rand(4, 4)
    assert folded(None) == set()
    assert folded(None, example_inputs=x) == {"last_norm"}
    assert folded([x, -x]) == folded([-x], example_inputs=x) == {"last_norm"}


@pytest.mark.parametrize("quiet", [False, True])
def test_the_terminal_says_what_runs_in_integers(model, quiet, capsys):
    manager = training.prepare_compression(model, QuantizationAwareTrainingConfig(), torch.rand(4, 8), quiet=quiet)
    manager.callbacks.on_train_begin()
    manager.model.train()(torch.rand(4, 8))
    manager.callbacks.on_train_end()
    assert ("integers: 2 Linear" in capsys.readouterr().err) is not quiet
