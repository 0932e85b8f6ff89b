"""Layers of one scheme and one input are quantized as one, and replaced when that is wanted."""

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics
from neural_compressor.dtypes import dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme
from neural_compressor.torch.methods.weight_only.layer_groups import LayerGroups
from neural_compressor.torch.modules import WeightOnlyLinear

OP = OpScheme(TensorScheme(dtype("int4"), True, PerGroup(32)), mode="weight_only", method=Method("gptq"))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(32, 8), "b": nn.Linear(32, 5)})


def seen():
    statistics = InputStatistics()
    statistics.update(torch.randn(64, 32, generator=torch.Generator().manual_seed(0)))
    return statistics


def test_layers_quantized_as_one_are_those_quantized_alone(model):
    groups = LayerGroups(model, {"a": OP, "b": OP})
    together = groups.quantize(["a", "b"], seen())
    assert type(model["a"]) is nn.Linear, "nothing is replaced yet"
    for name in ("a", "b"):
        alone = groups.quantize([name], seen()).layers[name]
        assert torch.equal(together.layers[name].weight_packed, alone.weight_packed)
    groups.apply([together])
    assert all(type(layer) is WeightOnlyLinear for layer in model.values())


def test_a_layer_that_no_data_reached_is_left_with_a_reason(model):
    groups = LayerGroups(model, {"a": OP})
    assert groups.quantize(["a"], InputStatistics()) is None
    assert groups.missed == {"a": "calibration never reached it"}


def test_a_model_that_is_a_layer_is_replaced(model):
    groups = LayerGroups(model["a"], {"": OP})
    groups.apply([groups.quantize([""], seen())])
    assert type(groups.model) is WeightOnlyLinear


def test_an_error_names_the_layers(model):
    nn.init.constant_(model["b"].weight, float("nan"))
    with pytest.raises(QuantizationError, match="layer 'a', 'b'"):
        LayerGroups(model, {"a": OP, "b": OP}).quantize(["a", "b"], seen())
