"""Modules of users are tried on other values; what they raise is theirs, and what else is raised is not hidden."""

import logging

import pytest
import torch
from torch import nn

from neural_compressor.torch.structure import module_forms
from neural_compressor.torch.structure.module_forms import tried_modules


class Router(nn.Module):
    def __init__(self, particular):
        super().__init__()
        self.weight, self.particular, self.first = nn.Parameter(torch.randn(6, 4)), particular, None

    def forward(self, x):
        self.first = x if self.first is None else self.first
        if self.particular and not torch.equal(x, self.first):
            raise ValueError("not the values I know")
        return x @ self.weight.t()


class Model(nn.Module):
    def __init__(self, particular):
        super().__init__()
        self.embed, self.router = nn.Embedding(7, 4), Router(particular)

    def forward(self, ids):
        return self.router(self.embed(ids))


def forms(particular):
    torch.manual_seed(0)
    return tried_modules(Model(particular).eval(), [((torch.arange(6).reshape(2, 3),), {})])[0]


def test_a_module_that_fails_on_other_values_has_no_form_and_that_is_said(caplog):
    with caplog.at_level(logging.DEBUG, "neural_compressor"):
        assert set(forms(particular=False).layers) == {"embed", "router"}
        assert not caplog.text
        assert set(forms(particular=True).layers) == {"embed"}
    assert "module 'router' (Router)" in caplog.text
    assert "ValueError: not the values I know" in caplog.text


def test_other_errors_are_not_hidden(monkeypatch):
    def broken(*args):
        raise TypeError("ours")

    monkeypatch.setattr(module_forms, "tried_form", broken)
    with pytest.raises(TypeError, match="ours"):
        forms(particular=False)
