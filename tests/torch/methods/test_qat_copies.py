"""Copies and checkpoints of a model that is trained with rounding: the best epoch, a moving average, a resumed run."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor import training
from neural_compressor.config import QuantizationAwareTrainingConfig
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import StaticQuantConfig, convert, prepare_qat

IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()


def prepared(kind):
    # Rules that speak of the layers: whether a layer is quantized is not to hang on which kernel is faster.
    config = StaticQuantConfig().set_local("0", StaticQuantConfig()).set_local("4", StaticQuantConfig())
    if kind == "exported":
        return prepare_qat(export(net(), IMAGES), config)
    return prepare_qat(net(), config, example_inputs=IMAGES, learned_step_size=kind == "learned")


def train(model, steps=2):
    optimizer = torch.optim.SGD(model.train().parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()
    return model


def converted(model):
    return convert(model, quiet=True)(IMAGES).detach()


KINDS = pytest.mark.parametrize("kind", ["eager", "learned", "exported"])


@KINDS
def test_a_copy_of_an_earlier_epoch_is_converted_beside_the_model(kind):
    expected = converted(train(prepared(kind)))
    model = train(prepared(kind))
    best = copy.deepcopy(model)
    parameters = {name for name, _ in model.named_parameters()}
    train(model)
    assert torch.equal(converted(best), expected)
    assert {name for name, _ in model.named_parameters()} == parameters
    assert torch.equal(converted(train(model)), converted(train(prepared(kind), 6)))


def test_converting_a_copy_leaves_the_model_in_training():
    model = train(prepared("learned"))
    first = convert(model, inplace=False, quiet=True)(IMAGES)
    train(model)
    assert not torch.equal(converted(model), first)


@KINDS
def test_a_training_goes_on_from_its_checkpoint(kind, tmp_path):
    model = train(prepared(kind))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, tmp_path / "checkpoint")
    again = prepared(kind)
    again.load_state_dict(load_file(tmp_path / "checkpoint"))
    assert torch.equal(again.eval()(IMAGES), model.eval()(IMAGES))
    resumed, whole = copy.deepcopy(again), copy.deepcopy(model)
    assert torch.equal(converted(again), converted(model))  # without a batch of its own
    assert torch.equal(converted(train(resumed)), converted(train(whole)))


def test_a_moving_average_of_the_weights_is_converted():
    model = train(prepared("eager"), 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        average.update_parameters(train(model, 1))
    expected = average.module.eval()(IMAGES).detach()
    torch.testing.assert_close(converted(average.module), expected, rtol=0, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["eager", "learned"])
def test_nan_in_training_names_the_layer(kind):
    with pytest.raises(CalibrationError, match=r"op '0' \(Conv2d\): NaN or Inf"):
        prepared(kind)(IMAGES * float("nan"))


@KINDS
def test_a_training_that_diverges_names_the_layer(kind):
    model = prepared(kind)
    train(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    for end in (lambda: model(IMAGES), lambda: converted(model)):
        with pytest.raises(QuantizationError, match=r"op '0' \(Conv2d\): .* NaN"):
            end()


def test_the_end_of_training_comes_once():
    manager = training.prepare_compression(net(), QuantizationAwareTrainingConfig(), quiet=True)
    manager.callbacks.on_train_begin()
    train(manager.model)
    manager.callbacks.on_train_end()
    with pytest.raises(ConfigError, match="on_train_end\\(\\) was called already"):
        manager.callbacks.on_train_end()
