"""Quantization-aware training in one call, as the 2.x API has it."""

import logging

import pytest
import torch
from torch import nn

from neural_compressor import QuantizationAwareTrainingConfig, training
from neural_compressor.errors import ConfigError


def manager():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return training.prepare_compression(model, QuantizationAwareTrainingConfig(), quiet=True)


def test_fit_trains_and_converts(caplog, tmp_path):
    trained = []

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        trained.append(model)

    with caplog.at_level(logging.INFO, "neural_compressor"):
        made = training.fit(manager(), train, eval_func=lambda model: 0.75)
    assert len(trained) == 1
    assert [type(made.model[place]).__name__ for place in (0, 2)] == ["QuantLinear", "QuantLinear"]
    assert "reaches 0.75" in caplog.text
    made.save(tmp_path / "out")
    assert (tmp_path / "out" / "qconfig.json").is_file()


def test_a_metric_on_data(caplog):
    data = [(torch.randn(6, 8), torch.randint(0, 2, (6,))) for _ in range(2)]
    with caplog.at_level(logging.INFO, "neural_compressor"):
        made = training.fit(manager(), lambda model: model(data[0][0]), eval_dataloader=data, eval_metric="accuracy")
    expected = torch.cat([made.model(x).argmax(1) == y for x, y in data]).float().mean().item()
    assert f"reaches {expected}"[:12] in caplog.text
    with pytest.raises(ConfigError, match="go together"):
        training.fit(manager(), lambda model: pytest.fail("trained"), eval_dataloader=data)


def test_a_loop_for_several_ways_to_compress():
    made = training.prepare_compression(nn.Linear(8, 2), [QuantizationAwareTrainingConfig()], quiet=True)
    loss = torch.ones(())
    assert made.callbacks.on_after_compute_loss(None, None, loss) is loss


def test_what_is_no_function_is_refused_before_training():
    with pytest.raises(ConfigError, match="eval_func is a int"):
        training.fit(manager(), lambda model: pytest.fail("trained"), eval_func=3)


def test_a_trained_model_is_saved_in_the_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compression = manager()
    compression.callbacks.on_train_begin()
    compression.model(torch.randn(4, 8))
    compression.callbacks.on_train_end()
    compression.save()
    assert (tmp_path / "nc_workspace" / "saved_model" / "qconfig.json").is_file()
    compression.save(root="out")
    assert (tmp_path / "out" / "qconfig.json").is_file()
