"""Norms are known by what they do, not by what they are called."""

import pytest
import torch
from torch import nn

from neural_compressor.torch.structure.norm_form import NormForm, norm_form

WIDTH = 24


class OnePlus(nn.Module):
    """An RMS norm that multiplies with 1 + weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Doubled(OnePlus):
    def forward(self, x):
        return super().forward(x) * self.weight


class ByChannel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.rand(WIDTH) + 1)

    def forward(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    ("module", "form"),
    [
        (nn.RMSNorm(WIDTH), NormForm(1.0)),
        (nn.RMSNorm(WIDTH, elementwise_affine=False), NormForm()),
        (nn.LayerNorm(WIDTH), NormForm(1.0, keeps_mean=True)),
        (nn.LayerNorm(WIDTH, bias=False), NormForm(1.0, keeps_mean=True)),
        (nn.LayerNorm(WIDTH, elementwise_affine=False), NormForm(None, keeps_mean=True)),
        (OnePlus(), NormForm(0.0)),
        (nn.Dropout(0.5).eval(), NormForm()),
        (nn.Identity(), NormForm()),
        (Doubled(), None),
        (ByChannel(), None),
        (nn.ReLU(), None),
        (nn.SiLU(), None),
        (nn.Softmax(-1), None),
        (nn.GroupNorm(4, WIDTH), None),
        (nn.PReLU(WIDTH), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_module_does_to_turned_inputs(module, form):
    assert norm_form(module, (2, 5, WIDTH)) == form


def test_the_gain_of_each_kind():
    assert torch.equal(NormForm(0.0).gain(norm := OnePlus()), 1 + norm.weight.double())
    assert NormForm().gain(nn.Identity()) is None


def test_nothing_is_changed_by_trying():
    norm = nn.LayerNorm(WIDTH)
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    norm_form(norm, (2, WIDTH))
    assert all(torch.equal(before[name], tensor) for name, tensor in norm.state_dict().items())


def test_half_precision_is_tried_in_float32():
    assert norm_form(nn.RMSNorm(WIDTH).bfloat16(), (2, 5, WIDTH)) == NormForm(1.0)
