"""SmoothQuant of a float model alone."""

import pytest
import torch
from torch import nn

from neural_compressor.adaptor.torch_utils import waq
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.algorithms.smooth_quant import SQLinearWrapper, TorchSmoothQuant


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


X = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))


def outliers(model):
    with torch.no_grad():
        model[0].weight[3] = 40.0
    return model


def published(model, alpha):
    """The scales of equation 4 of the paper for the first layer."""
    inputs, weight = model[0](X).abs().amax(0), model[1].weight.abs().amax(0)
    return inputs**alpha / weight ** (1 - alpha)


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_folded_scales_are_those_of_the_paper(alpha):
    model = outliers(net())[:2]
    expected, before, scale = model(X), model[1].weight.detach().clone(), published(model, alpha).detach()
    smoothed = TorchSmoothQuant(model, [X]).transform(alpha=alpha, folding=True)
    assert smoothed is model
    torch.testing.assert_close(model[1].weight / before, scale.expand(8, 16), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(X), expected, rtol=1e-4, atol=1e-5)
    assert type(model[1]) is nn.Linear


def test_without_folding_inputs_are_multiplied():
    model = outliers(net())
    expected, before, scale = model(X), model[1].weight.detach().clone(), published(model, 0.5).detach()
    smoother = waq.TorchSmoothQuant(model, q_func=lambda given: given(X))
    smoother.transform(alpha=0.5)
    assert isinstance(model[1], SQLinearWrapper)
    assert isinstance(model[3], SQLinearWrapper)
    torch.testing.assert_close(model[1].input_scale, 1 / scale, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model(X), expected, rtol=1e-4, atol=1e-5)
    smoother.recover()
    assert torch.equal(model[1].weight, before)
    assert torch.equal(model(X), expected)


def test_convolutions_and_searched_alphas():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    images = torch.randn(4, 3, 8, 8)
    expected = model(images)
    smoother = TorchSmoothQuant(model, [(images, torch.zeros(4))])
    smoother.transform(alpha="auto", op_types=["Conv2d"], auto_alpha_args={"alpha_min": 0.3, "alpha_max": 0.7})
    assert isinstance(model[2], SQLinearWrapper)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "called", "message"),
    [
        ({}, {}, "dataloader, q_func or example_inputs"),
        ({"dataloader": [X], "q_func": print}, {}, "dataloader, q_func or example_inputs"),
        ({"dataloader": [X], "record_max_info": True}, {}, "record_max_info"),
        ({"example_inputs": X}, {"percentile": 99}, "percentile"),
        ({"example_inputs": X}, {"op_types": ["Embedding"]}, "Embedding"),
        ({"example_inputs": X}, {"nonsense": 1}, "nonsense"),
        ({"example_inputs": X}, {"alpha": 3.0}, "alpha"),
    ],
)
def test_what_is_refused(made, called, message):
    with pytest.raises(ConfigError, match=message):
        TorchSmoothQuant(net(), **made).transform(**called)


def test_a_calibration_that_fails_leaves_the_model_as_it_was():
    model = net().train()

    def fails(given):
        given(X)
        raise RuntimeError("no more data")

    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CalibrationError, match=r"q_func \(.*fails\) raised RuntimeError"):
        TorchSmoothQuant(model, q_func=fails).transform()
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
