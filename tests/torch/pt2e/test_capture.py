"""Export: inputs in every form, dimensions that vary, and why a model cannot be exported."""

import logging
import sys

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.export import export, export_model_for_pt2e_quant
from neural_compressor.torch.pt2e.exported import FixedDimension
from neural_compressor.torch.quantization import StaticQuantConfig, convert, prepare


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, mask=None, *, scale=1.0):
        y = self.fc(x) * scale
        return y if mask is None else y * mask


X, MASK = torch.arange(8.0).reshape(2, 4), torch.tensor([[1.0], [0.0]])


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        (X, (X,), {}),
        ((X, MASK), (X, MASK), {}),
        ({"x": X, "mask": MASK}, (), {"x": X, "mask": MASK}),
        (((X,), {"mask": MASK}), (X,), {"mask": MASK}),
        (((X,), {"mask": MASK, "scale": 2.0}), (X,), {"mask": MASK, "scale": 2.0}),
        # By position where the export had names, and the other way round.
        ({"x": X, "mask": MASK}, (X, MASK), {}),
        ((X, MASK), (), {"mask": MASK, "x": X}),
        (X, (X,), {"mask": None}),
    ],
)
def test_inputs(inputs, args, kwargs):
    model = Scaled()
    torch.testing.assert_close(export(model, inputs)(*args, **kwargs), model(*args, **kwargs))


def test_a_tensor_given_twice_is_two_inputs():
    class Difference(nn.Module):
        def forward(self, x, y):
            return x - 2 * y[0]

    exported = export(Difference(), (X, (X, X)))
    assert torch.equal(exported(X, (X + 1, 9 * X)), X - 2 * (X + 1))


@pytest.mark.parametrize("held", [False, True])
def test_dimensions_of_other_keywords_vary_too(held):
    class Keywords(nn.Module):
        def forward(self, *xs, **more):
            return xs[0] * more["scale"] + more["y"]

    model = Keywords()
    if held:
        model.forward = model.forward
    before = dict(vars(model))
    exported = export(model, ((X,), {"y": X + 1, "scale": 3}))
    assert vars(model) == before
    assert [known.dimension for known in exported.fixed_dimensions] == [1, 1]
    other = torch.randn(5, 4)
    assert torch.equal(exported(other, y=other, scale=3), other * 3 + other)


def test_the_alias():
    assert export_model_for_pt2e_quant is export


def test_the_batch_varies_though_one_sample_was_given(cnn):
    exported = export(cnn, torch.randn(1, 3, 8, 8))
    x = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(exported(x), cnn(x))
    assert exported.fixed_dimensions == tuple(FixedDimension("x", at, size) for at, size in ((1, 3), (2, 8), (3, 8)))


def test_a_batch_that_the_model_fixes_is_listed(caplog):
    class OneSample(nn.Module):
        def forward(self, x):
            return x.reshape(1, 12)

    with caplog.at_level(logging.INFO, "neural_compressor"):
        exported = export(OneSample(), torch.randn(1, 12))
    assert FixedDimension("x", 0, 1) in exported.fixed_dimensions
    assert "x: dimension 0 is 1" in caplog.text
    with pytest.raises(ConfigError, match="dimension 0, which stayed 1"):
        exported(torch.randn(2, 12))


def test_a_sequence_that_a_loop_fixes_is_listed():
    class Recurrent(nn.Module):
        def forward(self, x):
            state = torch.zeros_like(x[:, 0])
            for step in range(x.shape[1]):
                state = torch.tanh(state + x[:, step])
            return state

    exported = export(Recurrent(), torch.randn(1, 5, 4))
    assert FixedDimension("x", 1, 5) in exported.fixed_dimensions
    with pytest.raises(ConfigError, match="dimension 1, which stayed 5"):
        exported(torch.randn(2, 6, 4))


@pytest.mark.parametrize("as_dict", [True, False])
def test_a_decoder_is_exported_without_its_cache(llama, as_dict):
    ids = torch.randint(0, 64, (1, 6))
    exported = export(llama, {"input_ids": ids} if as_dict else ids)
    other = torch.randint(0, 64, (3, 9))  # batch and sequence of other sizes
    torch.testing.assert_close(exported(other).logits, llama(other).logits, rtol=1e-4, atol=1e-5)
    assert exported.fixed_dimensions == ()
    assert llama.config.use_cache is True
    assert exported(input_ids=other, use_cache=False, attention_mask=None).logits.shape == (3, 9, 64)


def test_the_mode_of_the_model_is_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    exported = export(model, X)
    assert model.training
    assert torch.equal(exported(X), exported(X))
    assert exported.eval() is exported
    with pytest.raises(ConfigError, match="evaluation mode"):
        exported.train()


def test_dynamic_shapes_of_the_user():
    exported = export(nn.Linear(4, 2), X, dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))
    assert exported(torch.ones(7, 4)).shape == (7, 2)
    with pytest.raises(ConfigError, match="dynamic_shapes do not fit"):
        export(nn.Linear(4, 2), X, dynamic_shapes=({1: torch.export.Dim("features")},))


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_printed_meanwhile_is_kept(fails, branching, caplog, capsys, monkeypatch):
    own = torch.export.export

    def printing(*args, **kwargs):
        print("of another thread", file=sys.stderr)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", printing)
    with caplog.at_level(logging.DEBUG, "neural_compressor"):
        export(branching if fails else nn.Linear(4, 2), torch.ones(2, 4))
    assert ("of another thread" in capsys.readouterr().err) != fails
    assert ("printed: of another thread" in caplog.text) == fails


def test_what_cannot_be_exported_runs_on_eager_kernels(branching, caplog, capsys):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        model = export(branching, torch.ones(2, 4))
    assert model is branching
    assert "def forward" not in capsys.readouterr().err  # of the graph that came to nothing
    assert "Branching cannot be exported" in caplog.text
    line = branching.forward.__code__.co_firstlineno + 2
    assert f"conftest.py, line {line}" in caplog.text
    prepared = prepare(model, StaticQuantConfig())
    prepared(torch.ones(2, 4))
    assert convert(prepared, quiet=True)(torch.ones(2, 4)).shape == (2, 4)


def positive(x):
    return bool((x > 0).all())


class Asking(nn.Module):
    """Branches on what a function of its own says of a tensor."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x):
        x = self.fc(x)
        return x if positive(x) else -x


def test_of_modules_of_one_class_the_one_that_fails_is_named(caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        export(nn.Sequential(nn.Linear(4, 4), Asking(), Asking()), torch.ones(2, 4))
    line = positive.__code__.co_firstlineno + 1
    assert f"(in module '1' of type Asking, {__file__}, line {line})" in caplog.text


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.ones(2, 5), r"do not fit the model: inputs \(2, 5\) float32; it raised RuntimeError"),
        ("text", "do not fit the model"),
        (None, "example_inputs is None"),
        ({"y": X}, "unexpected keyword argument"),
    ],
)
def test_bad_inputs(inputs, message):
    with pytest.raises(ConfigError, match=message):
        export(Scaled(), inputs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(X), "'mask' is missing"),
        (lambda m: m(X, MASK, scale=3.0), "is called with 'scale' too"),
        (lambda m: m(X, torch.ones(2)), "has 1 dimensions"),
        (lambda m: m(torch.ones(2, 5), MASK), "is 5 in dimension 1, which stayed 4"),
    ],
)
def test_calls_that_do_not_fit_the_export(call, message):
    with pytest.raises(ConfigError, match=message):
        call(export(Scaled(), (X, MASK)))


def test_a_constant_is_part_of_the_graph():
    exported = export(Scaled(), ((X,), {"scale": 2.0}))
    with pytest.raises(ConfigError, match=r"input 'scale' is 3.0; the model was exported with 2.0"):
        exported(X, scale=3.0)


def test_an_exported_model_is_not_exported_again(cnn):
    with pytest.raises(ConfigError, match="exported already"):
        export(export(cnn, torch.randn(2, 3, 8, 8)), torch.randn(2, 3, 8, 8))


def test_no_model():
    with pytest.raises(ConfigError, match="export: the model is a str"):
        export("model", X)
