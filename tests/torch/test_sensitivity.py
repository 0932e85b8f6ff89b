"""Errors of single ops and what becomes of them, against loops that do the same by hand."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.quantization import fit
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


# -- the curvature of a loss ----------------------------------------------------------------------------------------


def test_curvatures_are_those_of_a_quadratic_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3, bias=False)).eval()
    x, y = torch.randn(64, 6), torch.randn(64, 3)
    adaptor = PyTorchAdaptor({"dataloader": [(x, y)]})
    plan = Plan.from_tune_cfg(default_tune_cfg(adaptor.query_fw_capability(model)))

    def loss(output, label):
        return ((output - label) ** 2).sum() / 2

    data = [(x, y)] * 200  # many random signs, the same data
    found = adaptor.op_curvatures(replace(plan, calib_sampling_size=64 * 200), model, loss, data)
    # H of sum |x w - y|^2 / 2 is one block x^T x for each output.
    trace = 3 * float(x.square().sum())
    change = adaptor.quantize(plan.to_tune_cfg(), model, data)[0].dequantized_weight() - model[0].weight.detach()
    expected = trace / 18 * float(change.double().square().sum())
    assert found == {("0", "Linear"): pytest.approx(expected, rel=0.05)}
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("loss", "data", "message"),
    [
        (lambda output, label: 1.0, [(torch.rand(2, 6), torch.rand(2, 4))], "expected one number that gradients"),
        (lambda output, label: output.no, [(torch.rand(2, 6), torch.rand(2, 4))], "hawq_v2_loss raised AttributeError"),
        (lambda output, label: output.sum(), [torch.rand(2, 6)], "batches are to be"),
    ],
)
def test_a_loss_that_is_none(made, loss, data, message):
    adaptor = PyTorchAdaptor({"dataloader": data})
    plan = Plan.from_tune_cfg(default_tune_cfg(adaptor.query_fw_capability(made[0])))
    with pytest.raises(CalibrationError, match=message):
        adaptor.op_curvatures(plan, made[0], loss, data)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("mse_v2", {"confidence_batches": 1}),
        ("hawq_v2", {"hawq_v2_loss": lambda output, label, criterion: criterion(output, label)}),
        ("tpe", {}),
    ],
)
def test_strategies_find_the_op_that_costs_accuracy(strategy, options, tmp_path):
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(64, 6)
    labels = model(x).argmax(1)

    def evaluate(m):
        return 1.0 if isinstance(m.second, nn.Linear) else 0.5

    criterion = TuningCriterion(strategy=strategy, strategy_kwargs=options, max_trials=40, objective="modelsize")
    conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=criterion)
    found = fit(model, conf, [(x, labels)], eval_func=evaluate, workspace=tmp_path, quiet=True)
    assert found.result.met
    assert isinstance(found.model.second, nn.Linear)


def test_hawq_needs_a_loss(tmp_path):
    conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=TuningCriterion(strategy="hawq_v2"))
    with pytest.raises(ConfigError, match="hawq_v2_loss"):
        fit(Net().eval(), conf, [torch.rand(4, 6)], eval_func=lambda m: 1.0, workspace=tmp_path, quiet=True)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("mse_v2", {}), ("hawq_v2", {"hawq_v2_loss": lambda output, label: output.square().mean()})],
)
def test_strategies_do_for_ops_of_which_no_gradient_is_looked_at(strategy, options, tmp_path):
    data = [(torch.randn(2, 3, 6), torch.zeros(2)) for _ in range(2)]
    criterion = TuningCriterion(strategy=strategy, strategy_kwargs=options, max_trials=2)
    conf = PostTrainingQuantConfig(approach="auto", tuning_criterion=criterion)
    best = fit(Recurrent().eval(), conf, data, eval_func=lambda model: 1.0, workspace=tmp_path, quiet=True)
    assert [kind for _, kind in best.model.quantization.plan] == ["LSTM"]
