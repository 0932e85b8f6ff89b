"""Axes of weights that inputs and outputs lie along, found by trying."""

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import Orthogonal
from neural_compressor.torch.structure.layer_form import LayerForm, holds_matrices, known_form, tried_form, turned_axis

WIDTH, INNER, EXPERTS = 12, 12, 3  # as wide inside as outside, so that sizes alone tell nothing


class Experts(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.act = nn.SiLU()
        self.gate, self.up = (nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH)) for _ in range(2))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))  # (in, out)
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH)) if bias else None

    def forward(self, x, shares):
        inner = self.act(torch.einsum("eiw,tw->eti", self.gate, x)) * torch.einsum("eiw,tw->eti", self.up, x)
        given = torch.einsum("eiw,eti->etw", self.down, inner)
        given = given if self.bias is None else given + self.bias[:, None]
        return torch.einsum("etw,te->tw", given, shares)


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x):
        scores = torch.softmax(x @ self.weight.T, -1)
        return scores, scores.topk(1).indices


class ByChannel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x):
        return x * self.weight[0]


def test_layers_that_are_known():
    assert known_form(nn.Linear(3, 4)) == LayerForm((("weight", 1),), (("weight", 0), ("bias", 0)))
    assert known_form(nn.Linear(3, 4, bias=False)) == LayerForm((("weight", 1),), (("weight", 0),))
    assert known_form(nn.Embedding(3, 4)) == LayerForm(outputs=(("weight", 1),))
    assert known_form(nn.LayerNorm(3)) is None


@pytest.mark.parametrize("bias", [False, True])
def test_stacks_of_experts(bias):
    torch.manual_seed(0)
    module = Experts(bias)
    assert holds_matrices(module)
    form = tried_form(module, (torch.randn(5, WIDTH), torch.rand(5, EXPERTS)), {})
    assert form.inputs == (("gate", 2), ("up", 2))
    assert form.outputs == ((("down", 2), ("bias", 1)) if bias else (("down", 2),))


def test_a_router_has_an_input_alone():
    module = Router()
    assert tried_form(module, (torch.randn(5, WIDTH),), {}) == LayerForm((("weight", 1),))


def test_what_works_on_channels_has_none():
    assert tried_form(ByChannel(), (torch.randn(5, WIDTH),), {}) is None


def test_layers_inside_are_not_matrices_of_its_own():
    assert not holds_matrices(nn.Sequential(nn.Linear(2, 2)))
    assert not holds_matrices(nn.Linear(2, 2))
    assert not holds_matrices(nn.LayerNorm(4))


def test_an_axis_is_turned_as_by_its_matrix():
    values, turn, gain = torch.randn(3, 6, 4).double(), Orthogonal(6, 1), torch.rand(6).double()
    by_hand = torch.einsum("aib,i,ij->ajb", values, gain, torch.from_numpy(turn.matrix))
    torch.testing.assert_close(turned_axis(values, 1, turn, gain=gain), by_hand)
