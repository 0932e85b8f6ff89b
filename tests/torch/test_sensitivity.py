"""Errors of single ops and what becomes of them, against loops that do the same by hand."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import Plan, float_op
from neural_compressor.testing.options import default_tune_cfg
from neural_compressor.torch.adaptor import PyTorchAdaptor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.third(torch.tanh(self.second(self.relu(self.first(x)))))


@pytest.fixture
def made():
    torch.manual_seed(0)
    return Net().eval(), [(torch.randn(8, 6), 0) for _ in range(4)]


def share(actual, expected):
    return float((actual - expected).square().sum() / expected.square().sum())


def test_errors_are_those_of_each_op_quantized_alone(made):
    model, data = made
    adaptor = PyTorchAdaptor()
    plan = Plan.from_tune_cfg(default_tune_cfg(adaptor.query_fw_capability(model)))
    found = adaptor.op_errors(plan, model, data)
    x = torch.cat([inputs for inputs, _ in data])
    seen = []
    for key in plan:
        seen.clear()
        others = {other: float_op("fp32", True) for other in plan if other != key}
        alone = adaptor.quantize(plan.with_ops(others).to_tune_cfg(), model, data)
        for each in (model, alone):
            module = each.get_submodule(key[0])
            hook = module.register_forward_hook(lambda module, args, output: seen.append(output.clone()))
            with torch.no_grad():
                each(x)
            hook.remove()
        expected = seen[0].relu() if getattr(alone.get_submodule(key[0]), "relu", False) else seen[0]
        assert found[key] == pytest.approx(share(seen[1], expected), rel=1e-3)


def test_gains_foretell_what_an_error_does_to_the_output(made):
    model, data = made
    gains = PyTorchAdaptor().op_gains(model, data * 32)  # more random signs, the same data
    x = torch.cat([inputs for inputs, _ in data])
    reference = model(x).detach()
    generator = torch.Generator().manual_seed(1)
    size = 1e-3

    def noisy(module, args, output):
        noise = torch.randn(output.shape, generator=generator)
        return output + noise * size * output.norm() / noise.norm()

    for (name, _), gain in gains.items():
        hook = model.get_submodule(name).register_forward_hook(noisy)
        with torch.no_grad():
            made_of_it = [share(model(x), reference) for _ in range(200)]
        hook.remove()
        assert gain * size**2 == pytest.approx(sum(made_of_it) / 200, rel=0.15), name


def test_of_the_last_op_all_of_the_error_comes_out(made):
    model, data = made
    assert PyTorchAdaptor().op_gains(model, data)["third", "Linear"] == pytest.approx(1.0)


def test_the_model_and_its_gradients_are_left_alone(made):
    model, data = made
    before = copy.deepcopy(model.state_dict())
    PyTorchAdaptor().op_gains(model, data)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.second._forward_hooks


def test_without_data_is_an_error(made):
    with pytest.raises(CalibrationError, match="op_gains runs the model on data"):
        PyTorchAdaptor().op_gains(made[0])
