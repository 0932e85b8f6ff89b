"""Products that forwards compute by functions, as modules."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.torch.functional import ScaledDotProductAttention
from neural_compressor.torch.modules.function_products import (
    close_products,
    open_products,
    opened_products,
    seen_products,
)
from neural_compressor.torch.structure.ops import find_products
from neural_compressor.torch.structure.watch import watch


def opened(model, *inputs):
    products = find_products(model, [watch(model, inputs)])
    new = copy.deepcopy(model)
    open_products(new, products)
    return new


def calls_of(model, run):
    found, handles = [], []
    for name, module in model.named_modules():
        if getattr(module, "by_function", False):
            handles.append(module.register_forward_hook(lambda *call, name=name: found.append(name)))
    result = run(model)
    for handle in handles:
        handle.remove()
    return found, result


class Net(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.first, self.second, self.product = nn.Linear(6, 6), nn.Linear(6, 6), product

    def forward(self, x):
        return self.product(self.first(x), self.second(x))


WAYS = {
    "operator": lambda a, b: a @ b.mT,
    "method": lambda a, b: a.matmul(b.mT),
    "named operand": lambda a, b: torch.matmul(a, other=b.mT),
    "all named": lambda a, b: torch.bmm(input=a, mat2=b.mT),
    "bmm": lambda a, b: torch.bmm(a, b.mT),
    "baddbmm": lambda a, b: torch.baddbmm(a[..., :1], a, b.mT, beta=0.5, alpha=2.0),
    "baddbmm without what is added": lambda a, b: torch.baddbmm(a[..., :1] / 0, a, b.mT, beta=0),
    "two on a line": lambda a, b: (a @ b.mT).softmax(-1) @ b,
}


@pytest.mark.parametrize("way", WAYS)
def test_modules_compute_what_the_functions_do(way):
    model, x = Net(WAYS[way]).eval(), torch.randn(2, 4, 6)
    found, result = calls_of(opened(model, x), lambda m: m(x))
    assert len(found) == len(set(found)) == (2 if way == "two on a line" else 1)
    torch.testing.assert_close(result, model(x))


def causal(x):
    return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()


ATTENTIONS = {
    "plain": lambda *qkv: F.scaled_dot_product_attention(*qkv, None),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal(q)),
    "added": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=causal(q).float()),
    "nothing to attend to": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.zeros_like(causal(q))),
    "groups": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
}


@pytest.mark.parametrize("way", ATTENTIONS)
def test_attention_as_two_products(way, monkeypatch):
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    expected = ATTENTIONS[way](q, k, v)
    monkeypatch.setattr(F, "scaled_dot_product_attention", ScaledDotProductAttention())
    torch.testing.assert_close(ATTENTIONS[way](q, k, v), expected)


def test_dropout_of_attention():
    x = torch.randn(1, 1, 64, 8)
    dropped = ScaledDotProductAttention()(x, x, torch.ones_like(x), dropout_p=0.5)
    assert dropped.std() > 0.01  # without it each row sums to one
    torch.testing.assert_close(dropped.mean(), torch.tensor(1.0), atol=0.2, rtol=0)


class Angles(nn.Module):
    """Products of positions, which have too many different values for few bits, and of masks."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("frequencies", torch.arange(4.0))

    def forward(self, x):
        angles = torch.arange(x.shape[-2])[:, None].float() @ self.frequencies[None]
        return self.fc(x) * angles.cos()


def test_positions_are_no_products_of_layers():
    assert not find_products(Angles(), [watch(Angles(), torch.randn(2, 3, 4))])


class Ways(nn.Module):
    """Products by a condition, in a loop, and by a function that is called twice."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, times=1, other=False):
        y = self.fc(x)
        if other:
            return self.of(y, y)
        for _ in range(times):
            y = y @ y.mT @ x
        return self.of(self.of(y, x), y)

    def of(self, a, b):
        return a @ b.mT


def test_places_in_the_code_not_counts_are_names():
    model, x = Ways().eval(), torch.randn(4, 4)
    new = opened(model, x)
    names = ["matmul", "matmul_1", "matmul_2", "matmul_3"]
    assert list(opened_products(new)) == names
    assert calls_of(new, lambda m: m(x))[0] == names
    looped, result = calls_of(new, lambda m: m(x, times=2))
    assert looped == [*names[:2], *names]
    torch.testing.assert_close(result, model(x, times=2))


def test_a_way_that_was_not_seen_is_computed_in_float_and_said(caplog):
    model, x = Ways().eval(), torch.randn(4, 4)
    new = opened(model, x)
    with caplog.at_level(logging.WARNING):
        found, result = calls_of(new, lambda m: m(x, other=True))
    assert found == []
    assert "Ways.of" in caplog.text
    torch.testing.assert_close(result, model(x, other=True))


def test_a_product_that_is_closed_again_is_known(caplog):
    model, x = Ways().eval(), torch.randn(4, 4)
    new = opened(model, x)
    close_products(new, ["matmul_2"])
    assert list(opened_products(new)) == ["matmul_2"]
    assert set(seen_products(new)) == {"matmul", "matmul_1", "matmul_2", "matmul_3"}
    assert [name for name, _ in new.named_children()] == ["fc", "matmul_2"]
    with caplog.at_level(logging.WARNING):
        for each in (new, copy.deepcopy(new)):
            found, result = calls_of(each, lambda m: m(x))
            assert found == ["matmul_2"]
            torch.testing.assert_close(result, model(x))
    assert "was not seen" not in caplog.text
    close_products(new)
    assert "forward" not in vars(new)
    assert [name for name, _ in new.named_children()] == ["fc"]


def test_products_that_cannot_be_opened_leave_the_others_alone():
    model, x = nn.Sequential(Ways(), Ways()).eval(), torch.randn(4, 4)
    products = find_products(model, [watch(model, x)])
    model[1].matmul = nn.Identity()
    with pytest.raises(FormatError, match="products of '1'"):
        open_products(model, products)
    assert not opened_products(model)
    assert [name for name, _ in model[0].named_children()] == ["fc"]


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_inside_of_multi_head_attention(weights, masked):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, mask=None):
            return self.attention(x, x, x, need_weights=weights, attn_mask=mask)[0]

    model, x = Own().eval(), torch.randn(2, 5, 8)
    inputs = (x, torch.triu(torch.full((5, 5), -torch.inf), 1)) if masked else (x,)
    with torch.no_grad():
        found, result = calls_of(opened(model, *inputs), lambda m: m(*inputs))
        torch.testing.assert_close(result, model(*inputs))
    assert len(found) == 2


def test_gradients_pass():
    model, x = Net(WAYS["operator"]), torch.randn(2, 4, 6)
    new = opened(model, x)
    for each in (model, new):
        each(x).square().sum().backward()
    torch.testing.assert_close(new.first.weight.grad, model.first.weight.grad)


def test_a_copy_has_products_of_its_own():
    model, x = opened(Net(WAYS["operator"]).eval(), torch.randn(2, 4, 6)), torch.randn(2, 4, 6)
    new = copy.deepcopy(model)
    with torch.no_grad():
        new.first.weight.zero_()
        new.first.bias.zero_()
    assert not new(x).any()
    assert calls_of(new, lambda m: m(x))[0] == calls_of(model, lambda m: m(x))[0] == ["matmul"]
