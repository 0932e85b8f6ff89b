"""Quantization-aware training of exported graphs: rounding as the converted graph does, in a loop of the user's."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.export import compile as compile_graph
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    convert,
    finalize_calibration,
    load,
    prepare,
    prepare_qat,
)

IMAGES = (8, 3, 8, 8)


def train(model, x, y, steps=20, rate=0.02):
    optimizer = torch.optim.SGD(model.parameters(), rate)
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_what_is_trained_is_what_is_converted(cnn):
    """Roundings of the trained graph in evaluation mode are those of the converted one."""
    torch.manual_seed(0)
    x, y = torch.randn(IMAGES), torch.randn(8, 10)
    exported = export(cnn, x)
    float_bn = exported(x)
    prepared = prepare_qat(exported, StaticQuantConfig())
    assert not any("batch_norm" in str(node.target) for node in prepared.graph.nodes)
    prepared(x)
    torch.testing.assert_close(prepared(x), float_bn, rtol=0, atol=0.05 * float(float_bn.detach().abs().max()))
    losses = train(prepared, x, y)
    assert losses[-1] < 0.9 * losses[0]
    expected = prepared.eval()(x)
    q_model = convert(prepared, quiet=True)
    # A value that lies between two codes may be rounded to the other one.
    torch.testing.assert_close(q_model(x), expected, rtol=0, atol=0.01 * float(expected.detach().abs().max()))
    plan = q_model.quantization.plan
    assert set(plan) == {("stem", "Conv2d"), ("body", "Conv2d"), ("head", "Linear")}
    assert {str(op.method) for op in plan.values()} == {"qat()"}
    assert not q_model(x).requires_grad


def test_a_step_by_hand():
    """The gradient of a weight is that at the rounded weight and input."""
    torch.manual_seed(1)
    fc, x, y = nn.Linear(6, 3, bias=False), torch.rand(5, 6), torch.randn(5, 3)
    prepared = prepare_qat(export(nn.Sequential(fc), x), StaticQuantConfig(), inplace=False)
    F.mse_loss(prepared(x), y).backward()
    w, data, wanted = (t.detach().double().numpy() for t in (fc.weight, x, y))
    w_scale = np.abs(w).max(1, keepdims=True) / 127
    scale = data.max() / 255
    rounded_w, rounded_x = np.round(w / w_scale) * w_scale, np.round(data / scale) * scale
    expected = 2 / wanted.size * (rounded_x @ rounded_w.T - wanted).T @ rounded_x
    found = dict(prepared.named_parameters())["0.weight"].grad
    if not prepared._prepared.execution.plan["0", "Linear"].weight.pair_safe:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert fc.weight.grad is None  # a graph over weights of its own


class TestLearnedSteps:
    """LSQ: a scale of each weight and activation is a parameter of the graph."""

    @pytest.fixture
    def prepared(self, cnn):
        torch.manual_seed(0)
        return prepare_qat(export(cnn, torch.randn(IMAGES)), StaticQuantConfig(), learned_step_size=True)

    def test_what_is_trained_is_what_is_converted(self, prepared, tmp_path):
        x, y = torch.randn(IMAGES), torch.randn(8, 10)
        steps = {name: p for name, p in prepared.named_parameters() if "rounding" in name}
        before = {name: p.detach().clone() for name, p in steps.items()}
        losses = train(prepared, x, y)
        assert losses[-1] < 0.9 * losses[0]
        assert {name.rpartition("rounding.")[2] for name in steps} == {"step", "steps.0", "zeros.0"}
        assert not any(torch.equal(p, before[name]) for name, p in steps.items() if not name.endswith("zeros.0"))
        expected = prepared.eval()(x)
        q_model = convert(prepared, quiet=True)
        torch.testing.assert_close(q_model(x), expected, rtol=1e-5, atol=1e-5)
        assert {str(op.method) for op in q_model.quantization.plan.values()} == {"qat(learned_step_size=True)"}
        assert not any("rounding" in name for name in q_model.state_dict())
        q_model.save(tmp_path / "model")
        assert torch.equal(load(tmp_path / "model")(x), q_model(x))

    def test_a_step_is_that_of_the_eager_model(self, mlp):
        """The same loss, and the same gradients of weights and steps."""
        torch.manual_seed(0)
        x, y = torch.rand(8, 16), torch.randn(8, 4)
        graph = prepare_qat(export(mlp, x), StaticQuantConfig(), inplace=False, learned_step_size=True)
        eager = prepare_qat(mlp, StaticQuantConfig(), learned_step_size=True)
        found = []
        for model in (graph, eager):
            model(x)
            F.mse_loss(model(x), y).backward()
            found.append(sorted(float(p.grad.double().square().sum()) for p in model.parameters()))
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-9)

    def test_steps_of_activations_rest_when_they_are_finalized(self, prepared):
        prepared(torch.randn(IMAGES))
        finalize_calibration(prepared)
        trained = {name.rpartition("rounding.")[2] for name, p in prepared.named_parameters() if p.requires_grad}
        assert "step" in trained
        assert not {"steps.0", "zeros.0"} & trained

    def test_training_goes_on_from_a_state_dict(self, prepared, cnn):
        x = torch.randn(IMAGES)
        train(prepared, x, torch.randn(8, 10), steps=3)
        other = prepare_qat(export(cnn, x), StaticQuantConfig(), inplace=False, learned_step_size=True)
        other.load_state_dict(prepared.state_dict())
        expected = prepared.eval()(x)
        assert torch.equal(other.eval()(x), expected)
        assert torch.equal(copy.deepcopy(other)(x), expected)
        torch.testing.assert_close(convert(other, quiet=True)(x), expected, rtol=1e-5, atol=1e-5)

    def test_weights_of_dynamic_layers(self, mlp):
        torch.manual_seed(0)
        x = torch.randn(16, 16)
        prepared = prepare_qat(export(mlp, x), DynamicQuantConfig(), learned_step_size=True)
        train(prepared, x, torch.randn(16, 4), steps=3)
        expected = prepared.eval()(x)
        torch.testing.assert_close(convert(prepared, quiet=True)(x), expected, rtol=1e-4, atol=1e-4)

    def test_convert_before_training(self, prepared):
        with pytest.raises(CalibrationError, match="3 static ops are learnt in training"):
            convert(prepared)


def test_dynamic_layers_are_trained_with_the_range_of_each_batch(mlp):
    torch.manual_seed(0)
    x, y = torch.randn(16, 16), torch.randn(16, 4)
    prepared = prepare_qat(export(mlp, x), DynamicQuantConfig(w_granularity="per_channel"))
    losses = train(prepared, x, y)
    assert losses[-1] < losses[0]
    expected = prepared.eval()(x)
    torch.testing.assert_close(convert(prepared, quiet=True)(x), expected, rtol=1e-4, atol=1e-4)


def test_training_gains_on_quantizing_after_training():
    """A row of a weight with one scale for all is far larger, so that others lose their values; the next layer can adapt."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        teacher[0].weight[0] *= 60
        teacher[2].weight[:, 0] = 0
    x = torch.randn(256, 16)
    y = teacher(x).detach()
    config = StaticQuantConfig().set_local("0", StaticQuantConfig(w_granularity="per_tensor"))
    after = prepare(export(teacher, x), config)
    after(x)
    lost = F.mse_loss(convert(after, quiet=True)(x), y)
    prepared = prepare_qat(export(teacher, x), config, inplace=False)
    optimizer = torch.optim.Adam(prepared.get_submodule("2").parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        F.mse_loss(prepared(x), y).backward()
        optimizer.step()
    assert F.mse_loss(convert(prepared, quiet=True)(x), y) < 0.8 * lost


def test_ranges_rest_in_evaluation_and_when_they_are_finalized(mlp):
    x = torch.randn(8, 16)
    prepared = prepare_qat(export(mlp, x), StaticQuantConfig())
    prepared(x)
    first = prepared.eval()(x)
    prepared(100 * x)
    assert torch.equal(prepared(x), first)
    prepared.train()
    prepared(2 * x)
    moved = prepared.eval()(x)
    assert not torch.equal(moved, first)
    finalize_calibration(prepared)
    prepared.train()(100 * x)
    assert torch.equal(prepared(x), moved)


def test_save_and_load(mlp, tmp_path):
    x = torch.randn(8, 16)
    prepared = prepare_qat(export(mlp, x), StaticQuantConfig())
    train(prepared, x, torch.randn(8, 4), steps=2)
    q_model = convert(prepared, quiet=True)
    q_model.save(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(x), q_model(x))


class TestBadInput:
    def test_convert_before_training(self, mlp):
        x = torch.randn(2, 16)
        prepared = prepare_qat(export(mlp, x), StaticQuantConfig())
        with pytest.raises(CalibrationError, match="3 static ops are learnt in training"):
            convert(prepared)
        prepared(x)
        assert convert(prepared, quiet=True)(x).shape == (2, 4)

    def test_example_inputs(self, mlp):
        with pytest.raises(ConfigError, match="leave out example_inputs"):
            prepare_qat(export(mlp, torch.randn(2, 16)), StaticQuantConfig(), example_inputs=torch.randn(2, 16))

    def test_passes(self, mlp):
        with pytest.raises(ConfigError, match="smooth"):
            prepare_qat(export(mlp, torch.randn(2, 16)), SmoothQuantConfig())


@pytest.mark.slow
def test_a_trained_graph_is_lowered(cnn):
    x = torch.randn(IMAGES)
    prepared = prepare_qat(export(cnn, x), StaticQuantConfig())
    train(prepared, x, torch.randn(8, 10), steps=2)
    q_model = convert(prepared, quiet=True)
    compiled = compile_graph(q_model, x, quiet=True)
    assert {record.name for record in compiled.lowering if record.mode == "static"} == {"stem", "body", "head"}
    torch.testing.assert_close(compiled(x), q_model(x), rtol=0, atol=0.02)
