"""RMS normalisation of one row: the bits of the module, whichever of the known formulas it has."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from neural_compressor.torch.modules.norm_forward import NormForward, may_be_norm

WIDTH = 576


class Norm(nn.Module):
    """As Llama's: rounded to the type of the input before the weight multiplies."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(WIDTH) + 0.5), eps

    def factor(self, x):
        return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * (x.float() * self.factor(x)).to(x.dtype)


class AfterWeight(Norm):
    def forward(self, x):
        return (x.float() * self.factor(x) * self.weight.float()).to(x.dtype)


class OnePlus(Norm):
    """As Gemma's."""

    def forward(self, x):
        return (x.float() * self.factor(x) * (1.0 + self.weight.float())).type_as(x)


class NoNorm(Norm):
    def forward(self, x):
        return self.weight * x


class Shifted(Norm):
    def forward(self, x):
        return super().forward(x) + 1


def built_in():
    norm = nn.RMSNorm(WIDTH, eps=1e-6)
    norm.weight.data.uniform_(0.5, 1.5)
    return norm


def installed(norm):
    new = copy.deepcopy(norm)
    NormForward(new).install()
    return new


def is_active(norm):
    return "forward" in vars(norm) and vars(norm)["forward"].active


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Norm, AfterWeight, OnePlus, built_in], ids=lambda kind: kind.__name__)
def test_the_bits_are_those_of_the_module(kind, dtype):
    norm = kind().to(dtype)
    new = installed(norm)
    for shape in ((1, 1, WIDTH), (1, WIDTH), (WIDTH,)):
        for size in (1, 1e-4, 1e4, 1e25, 0):
            x = (torch.randn(shape) * size).to(dtype)
            assert torch.equal(new(x).nan_to_num(), norm(x).nan_to_num()), size
    assert is_active(new) or kind is built_in


def test_infinity_and_nan_pass_without_a_word():
    norm = Norm()
    new = installed(norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (float("inf"), float("nan"), 3e38):
            x = torch.randn(1, WIDTH).index_fill(1, torch.tensor([3]), value)
            torch.testing.assert_close(new(x), norm(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", [NoNorm, Shifted], ids=lambda kind: kind.__name__)
def test_what_is_no_such_normalisation_is_left_as_it_was(kind):
    norm, x = kind(), torch.randn(1, WIDTH)
    new = installed(norm)
    assert torch.equal(new(x), norm(x))
    assert "forward" not in vars(new)


def test_weights_are_read_at_each_call_and_an_epsilon_counts():
    norm, x = Norm(), torch.randn(1, WIDTH) * 1e-3
    new = installed(norm)
    new(x)
    for each in (norm, new):
        each.weight.mul_(2)
    assert torch.equal(new(x), norm(x))
    norm.eps = new.eps = 1e-2
    assert torch.equal(new(x), norm(x))
    assert torch.equal(new.to(torch.bfloat16)(x.bfloat16()), norm.to(torch.bfloat16)(x.bfloat16()))
    assert is_active(new)


def test_several_rows_and_gradients_run_the_own_forward():
    norm = Norm()
    new = installed(norm)
    x = torch.randn(5, WIDTH)
    assert torch.equal(new(x), norm(x))
    with torch.enable_grad():
        row = x[:1].clone().requires_grad_()
        new(row).sum().backward()
    assert row.grad.abs().sum() > 0
    assert new.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_is_a_module_of_its_own(copied):
    new, x = installed(Norm()), torch.randn(1, WIDTH)
    before = new(x)
    other = copied(new)
    other.weight.mul_(2)
    assert torch.equal(other(x), 2 * before)
    assert torch.equal(new(x), before)
    assert is_active(other)


def test_export_and_compilation():
    norm, x = Norm(), torch.randn(1, WIDTH)
    new = installed(norm)
    new(x)
    assert torch.equal(torch.export.export(new, (x,)).module()(x), norm(x))
    assert torch.equal(torch.compile(new, fullgraph=True, backend="eager")(x), norm(x))
    assert torch.equal(torch.jit.trace(new, x)(x), norm(x))


def test_what_may_be_one():
    assert may_be_norm(Norm())
    assert not may_be_norm(nn.LayerNorm(8))
    assert not may_be_norm(nn.BatchNorm1d(8))
    assert not may_be_norm(nn.Linear(8, 8, bias=False))
    assert not may_be_norm(nn.Sequential(Norm()))
