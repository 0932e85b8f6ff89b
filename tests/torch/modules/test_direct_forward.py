"""Modules that call the kernels of their layers directly give the bits of their own forward, or run it."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.direct_forward import DirectForward, run_as_written, run_directly
from neural_compressor.torch.quantization import RTNConfig, load, quantize, save

WIDTH = 64


class Gated(nn.Module):
    """The feed-forward part of a language model."""

    def __init__(self, bias=False):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 128, bias), nn.Linear(WIDTH, 128, bias)
        self.down, self.act, self.drop = nn.Linear(128, WIDTH, bias), nn.SiLU(), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.down(self.act(self.gate(x)) * self.up(x)))


class Branching(Gated):
    def forward(self, x):
        return self.down(self.gate(x)) if x.sum() > 0 else self.down(self.up(x))


class WithOptions(Gated):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


class Regrouped(Gated):
    """Whose second layer is given other rows than its first."""

    def forward(self, x):
        return self.down(self.gate(x).reshape(-1, 128))


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + self.part(x)


def quantized(part, **config):
    torch.manual_seed(0)
    return quantize(Model(part).eval(), RTNConfig(group_size=32, **config))


def forward_of(model):
    return vars(model.part).get("forward")


def as_written(model):
    plain = copy.deepcopy(model)
    run_as_written(plain)
    assert forward_of(plain) is None
    return plain


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


class Products(TorchFunctionMode):
    """Sees operators, as what watches a model does."""

    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1, WIDTH), (1, WIDTH), (WIDTH,), (2, 3, WIDTH)], ids=str)
def test_the_bits_are_those_of_the_own_forward(shape, bits, bias):
    model, x = quantized(Gated(bias), bits=bits), torch.randn(shape)
    plain = as_written(model)
    for _ in range(4):
        assert torch.equal(model(x), plain(x))
        x = torch.randn(shape)
    assert forward_of(model).active


def test_layers_that_read_one_input_have_one_product():
    model, x = quantized(Gated()), torch.randn(1, 1, WIDTH)
    model(x)
    assert [layer.shared_input.is_joined for layer in (model.part.gate, model.part.up, model.part.down)] == [
        *(True, True, False)
    ]


def test_many_rows_run_the_own_forward():
    model = quantized(Gated())
    plain, x = as_written(model), torch.randn(4096, WIDTH)
    assert torch.equal(model(x), plain(x))
    assert not forward_of(model).active
    model(x[:1])
    assert forward_of(model).active
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("part", [Branching, Regrouped], ids=lambda kind: kind.__name__)
def test_a_module_that_does_not_fit_is_left_as_it_was(part):
    model, x = quantized(part()), torch.randn(2, 3, WIDTH)
    plain = as_written(model)
    for values in (x, x.abs(), -x.abs()):
        assert torch.equal(model.part(values), plain.part(values))
    assert forward_of(model) is None


def test_an_argument_that_is_no_tensor():
    model, x = quantized(WithOptions()), torch.randn(1, WIDTH)
    assert torch.equal(model.part(x, scale=2.0), as_written(model).part(x, scale=2.0))
    assert forward_of(model) is None


def test_hooks_inside_are_called():
    model, x, seen = quantized(Gated()), torch.randn(1, WIDTH), []
    model(x)
    handle = model.part.up.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model(x)
    handle.remove()
    model(x)
    assert seen == [(1, 128)]


def test_another_forward_of_a_layer_is_the_one_that_runs():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    for _ in range(2):  # before it is traced, and after
        model.part.up.forward = lambda x: x.new_zeros(*x.shape[:-1], 128)
        assert torch.equal(model(x), x)
        del model.part.up.forward
        assert not torch.equal(model(x), x)
        assert forward_of(model).active


def test_who_watches_operators_sees_those_of_the_own_forward():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    plain = as_written(model)
    for each in (model, plain):
        each(x)
        each(x)
    with Products() as one:
        model(x)
    with Products() as other:
        plain(x)
    assert one.seen == other.seen > 0


def test_a_changed_layer_counts():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    before = model(x)
    model.part.down.exact = True
    assert not torch.equal(model(x), before)
    model.part.down.exact = False
    assert torch.equal(model(x), before)
    model.part.act = nn.ReLU()
    plain = as_written(model)
    assert torch.equal(model(x), plain(x))
    assert not torch.equal(model(x), before)


def test_training_drops_out_and_gradients_flow():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    model(x)
    model.train()
    assert not torch.equal(model(x), model(x))
    model.eval()
    with torch.enable_grad():
        x.requires_grad_()
        model(x).sum().backward()
        expected = x.grad.clone()
        x.grad = None
        as_written(model)(x).sum().backward()
    assert torch.equal(x.grad, expected)
    assert expected.abs().sum() > 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_is_a_model_of_its_own(copied):
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    expected = model(x)
    new = copied(model)
    assert isinstance(forward_of(new), DirectForward)
    assert forward_of(new).module is new.part
    assert torch.equal(new(x), expected)
    new.part.down = nn.Linear(128, WIDTH)
    assert torch.equal(model(x), expected)
    assert not torch.equal(new(x), expected)


def test_other_types_run_the_own_forward():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    model(x)
    half = x.to(torch.bfloat16)
    assert torch.equal(model(half), as_written(model)(half))
    assert torch.equal(model(x.double()), as_written(model)(x.double()))


def test_a_wrong_input_is_said_in_the_words_of_the_layer():
    model = quantized(Gated())
    model(torch.randn(1, WIDTH))
    with pytest.raises(Exception, match="a layer of 64 inputs cannot take"):
        model.part(torch.randn(1, WIDTH // 2))
    assert forward_of(model).active


def test_state_and_files_know_nothing_of_it(tmp_path):
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    assert model.state_dict().keys() == as_written(model).state_dict().keys()
    save(model, tmp_path / "saved")
    new = load(tmp_path / "saved", Model(Gated()))
    assert isinstance(forward_of(new), DirectForward)
    assert torch.equal(new(x), model(x))


def test_export_and_compilation():
    model, x = quantized(Gated()), torch.randn(1, WIDTH)
    expected = model(x)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), expected, rtol=0.05, atol=0.05)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.jit.trace(model, x)(x), expected, rtol=0.05, atol=0.05)


def test_a_forward_of_the_object_is_left_alone():
    model = Model(Gated()).eval()
    model.part.forward = lambda x: -F.relu(x)
    new = quantize(model, RTNConfig(group_size=32))
    x = torch.randn(1, WIDTH)
    assert torch.equal(new(x), x - F.relu(x))


def test_a_float_model_is_left_alone():
    model = Model(Gated())
    run_directly(model)
    assert forward_of(model) is None
    assert not any(isinstance(module, WeightOnlyLinear) for module in model.modules())
