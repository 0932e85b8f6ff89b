"""What a layer of a quantized graph reads is what the float model has there, whatever was written in place before."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, convert, prepare

pytest.importorskip("torchao")


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("rows", torch.zeros(8, 16))


class Part(Layers):
    def forward(self, x):
        x = self.a(x)
        x[:, :8] = 5
        return self.b(x) + self.c(x)


class View(Layers):
    def forward(self, x):
        x = self.a(x)
        rows = x.unsqueeze(1)
        x.mul_(3)
        return self.b(rows)[:, 0]


class Parts(Layers):
    def forward(self, x):
        x = self.a(x)
        first, second = x.chunk(2, 1)
        first.add_(5)
        second.mul_(torch.sigmoid(first))
        return self.b(torch.cat([second, first], 1)) + self.c(x)


class Buffer(Layers):
    def forward(self, x):
        self.rows[:4] = self.a(x)
        return self.b(self.rows)


class Given(Layers):
    def forward(self, x):
        x[:, :8] = 1
        return self.b(x) + self.a(x)


class Empty(Layers):
    def forward(self, x):
        h = torch.empty_like(x)
        h.copy_(self.a(x))
        h[:, ::2].copy_(x[:, ::2])
        return self.b(h)


class Dropped(Layers):
    """Dropout that is off gives its input itself."""

    def forward(self, x):
        x = self.a(x)
        y = F.dropout(x, 0.5, self.training)
        y += 4
        return self.b(x) + self.c(y)


class Before(Layers):
    def forward(self, x):
        x = self.a(x)
        y = self.b(x)
        x.neg_()
        return y + self.c(x)


@pytest.mark.parametrize("config", [StaticQuantConfig, DynamicQuantConfig])
@pytest.mark.parametrize("kind", [Part, View, Parts, Buffer, Given, Empty, Dropped, Before])
@torch.no_grad()
def test_layers_read_what_was_written(kind, config):
    model, x = kind().eval(), torch.randn(4, 16)
    expected = copy.deepcopy(model)(x.clone())
    prepared = prepare(export(model, x.clone()), config().set_local("Linear", config()))
    prepared(x.clone())
    found = convert(prepared)(x.clone())
    assert (found - expected).norm() < 0.03 * expected.norm()


def test_a_write_that_gives_what_it_wrote_into_is_read_itself():
    class Statement(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.a(x)
            F.relu(x, inplace=True)
            return self.b(x)

    graph = export(Statement(), torch.randn(2, 3, 4, 4)).graph
    *_, last = (node for node in graph.nodes if node.target is torch.ops.aten.conv2d.default)
    assert last.args[0].target is torch.ops.aten.relu_.default
    assert torch.ops.aten.alias.default not in [node.target for node in graph.nodes]


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.top = nn.Linear(256, 8)
        self.register_buffer("total", torch.zeros(2, 4, 8, 8))


class SumBehindPart(Convolutions):
    def forward(self, x):
        y = self.a(x)
        y[:, :2] = 50
        y += self.b(x)
        return self.c(y.relu_())


class SumUnderView(Convolutions):
    def forward(self, x):
        y = self.a(x)
        rows = y.view(2, -1)
        y += self.b(x)
        return self.top(rows) + self.c(y).sum()


class SumInBuffer(Convolutions):
    def forward(self, x):
        self.total.zero_()
        self.total += self.a(x)
        self.total += self.b(x)
        return self.c(self.total)


class SumInGiven(Convolutions):
    def forward(self, x):
        x += self.a(x)
        return self.c(x)


class FlatBehindPart(Convolutions):
    def forward(self, x):
        y = self.a(x)
        y[:, :2] = 50
        return self.top(y.flatten(1))


@pytest.mark.parametrize("kind", [SumBehindPart, SumUnderView, SumInBuffer, SumInGiven, FlatBehindPart])
@torch.no_grad()
def test_what_is_written_into_is_no_copy(kind):
    model, x = kind().eval(), torch.randn(2, 4, 8, 8)
    given, float_model = x.clone(), copy.deepcopy(model)
    expected = [float_model(given), given, float_model.total]
    prepared = prepare(export(model, x.clone()), StaticQuantConfig())
    prepared(x.clone())
    q_model = convert(prepared)
    given = x.clone()
    found = [q_model(given), given, getattr(q_model, "total", float_model.total)]
    for value, wanted in zip(found, expected, strict=True):
        assert (value - wanted).norm() <= 0.03 * wanted.norm()


def test_a_sum_that_is_written_into_a_result_takes_int8():
    class Residual(Convolutions):
        def forward(self, x):
            x = self.a(x).relu_()
            y = self.b(x)
            y += x
            return self.c(y.relu_())

    x = torch.randn(2, 4, 8, 8)
    prepared = prepare(export(Residual().eval(), x), StaticQuantConfig())
    prepared(x)
    (add,) = (node for node in convert(prepared).graph.nodes if node.target is torch.ops.aten.add_.Tensor)
    assert "dequantize_per_tensor" in str(add.args[1].target)
