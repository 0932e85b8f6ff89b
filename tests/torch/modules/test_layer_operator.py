"""Weight-only layers in compiled models. The backend ``eager`` runs what was traced as it is, and needs no C++ compiler."""

import copy

import torch
from torch import nn

from neural_compressor.algorithms import LayerResult, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear


def layer_of(inputs, outputs):
    array = rtn(torch.randn(outputs, inputs) * 0.1, TensorScheme(dtype("int4"), granularity=PerGroup(32)))
    return WeightOnlyLinear.from_layer(nn.Linear(inputs, outputs), LayerResult(array))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = layer_of(64, 96), layer_of(64, 96), layer_of(96, 64)

    def forward(self, x):
        return self.down(self.gate(x).relu() * self.up(x))


def test_the_graph_is_whole_and_computes_the_same():
    model = Gated()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for rows in (1, 1, 1, 5, 600):
            x = torch.randn(1, rows, 64)
            assert torch.equal(compiled(x), copy.deepcopy(model)(x))
    assert model.gate.shared_input.is_joined


def test_a_copy_is_a_layer_of_its_own():
    layer = layer_of(64, 32)
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer_of(64, 32).state_dict())
    x = torch.randn(1, 64)
    with torch.no_grad():
        for one in (layer, twin):
            assert torch.equal(torch.compile(one, backend="eager", fullgraph=True)(x), one(x))
        assert not torch.equal(layer(x), twin(x))


def test_gradients_flow_through_a_compiled_model():
    layer = layer_of(64, 32)
    x = torch.randn(2, 64, requires_grad=True)
    torch.compile(layer, backend="eager")(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.dequantized_weight().sum(0).expand(2, -1), rtol=0.02, atol=0.02)
    assert layer(x.detach()).shape == (2, 32)
