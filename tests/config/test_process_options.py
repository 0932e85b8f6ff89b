"""Settings of the process reach runs and configurations."""

import pytest
import torch
from torch import nn

import neural_compressor
from neural_compressor import mix_precision, quantization
from neural_compressor.config import (
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
    TuningConfig,
    TuningCriterion,
    options,
)
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import AutoRoundConfig, RTNConfig, autotune


@pytest.fixture(autouse=True)
def usual(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = options.model_copy()
    yield
    options.resume_from = None
    options.random_seed, options.workspace = before.random_seed, before.workspace


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)).eval()


def test_workspace(tmp_path):
    neural_compressor.set_workspace("here")
    quantization.fit(net(), PostTrainingQuantConfig(approach="dynamic"), quiet=True)
    assert (tmp_path / "here" / "report.html").is_file()
    neural_compressor.set_workspace(tmp_path / "there")
    mix_precision.fit(net(), MixedPrecisionConfig(), quiet=True)
    assert (tmp_path / "there" / "report.html").is_file()
    neural_compressor.set_workspace("tuned")
    autotune(net(), TuningConfig(RTNConfig(bits=8)), lambda model: 1.0, quiet=True)
    assert (tmp_path / "tuned" / "report.html").is_file()
    quantization.fit(net(), PostTrainingQuantConfig(approach="dynamic"), workspace="given", quiet=True)
    assert (tmp_path / "given" / "report.html").is_file()
    assert not (tmp_path / "nc_workspace").exists()


def test_folders_are_text_as_programs_add_to_it(tmp_path):
    assert options.workspace + "/model.pt" == "nc_workspace/model.pt"
    neural_compressor.set_workspace(tmp_path)
    neural_compressor.set_resume_from(tmp_path)
    assert options.workspace == options.resume_from == str(tmp_path)


def test_resume_from_goes_on_in_an_earlier_workspace(tmp_path):
    def evaluate(model):
        return float(type(model[0]) is nn.Linear)  # no quantized model keeps the promise

    def tried(max_trials, **kwargs):
        conf = PostTrainingQuantConfig(approach="dynamic", tuning_criterion=TuningCriterion(max_trials=max_trials))
        return quantization.fit(net(), conf, eval_func=evaluate, quiet=True, **kwargs).result.metadata["storage"]

    journal = tried(1, workspace="earlier")
    neural_compressor.set_resume_from("earlier")
    neural_compressor.set_workspace("elsewhere")
    assert tried(2) == journal
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ConfigError, match="no folder 'nowhere'"):
        neural_compressor.set_resume_from("nowhere")


def test_random_seed():
    assert PostTrainingQuantConfig().seed == TuningConfig(RTNConfig()).seed == AutoRoundConfig().seed == 42
    neural_compressor.set_random_seed(7)
    assert PostTrainingQuantConfig().seed == TuningConfig(RTNConfig()).seed == AutoRoundConfig().seed == 7
    assert PostTrainingQuantConfig(seed=8).seed == 8
    with pytest.raises(ConfigError, match="random_seed"):
        neural_compressor.set_random_seed(-1)


def test_tensorboard_is_refused():
    neural_compressor.set_tensorboard(False)
    with pytest.raises(ConfigError, match=r"tensorboard.*report\.html"):
        neural_compressor.set_tensorboard(True)
