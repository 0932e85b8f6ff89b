import pytest
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules import QUANT_MODULES, QuantLinear, QuantModule, quantized_module


def test_every_module_is_found_by_the_class_it_replaces():
    assert set(QUANT_MODULES) == {
        *("Linear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "Add", "Mul", "MatMul"),
        *(f"Conv{n}d" for n in (1, 2, 3)),
        *(f"ConvTranspose{n}d" for n in (1, 2, 3)),
    }
    for name in QUANT_MODULES:
        assert issubclass(QUANT_MODULES[name], QuantModule)
        assert QUANT_MODULES[name].replaces.__name__ == name


class Plain(nn.Linear):
    pass


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Impostor:
    """Classes that only share a name."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(nn.Linear(2, 2).weight.detach())

        def forward(self, x):
            return x


def test_a_subclass_counts_while_it_computes_the_same(scheme):
    assert type(quantized_module(Plain(4, 3), scheme("int8 channel"))) is QuantLinear
    for module in (Own(4, 3), Impostor.Linear()):
        with pytest.raises(QuantizationError, match="no quantized module behaves like"):
            quantized_module(module, scheme("int8 channel"))


def test_a_weight_type_is_needed(scheme):
    with pytest.raises(QuantizationError, match="needs a quantized weight type, got fp32"):
        quantized_module(nn.Linear(4, 3), scheme({"dtype": "fp32"}, "uint8 asym", "static"), [(0, 1)])
    with pytest.raises(QuantizationError, match="needs a quantized weight type, got none"):
        quantized_module(nn.Linear(4, 3), scheme(None, "uint8 asym", "static"), [(0, 1)])
