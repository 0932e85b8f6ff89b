import pytest
import torch
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules import quantized_module

WEIGHTS = [
    "int8 channel",
    "int8 tensor",
    "uint4 asym channel",
    "int3 channel",
    "int4 8",
    "uint2 asym 8",
    "nf4 16",
    "mxfp4",
    "nvfp4",
    "fp8_e4m3 channel",
]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_rows_are_those_of_the_dequantized_table(scheme, weight):
    module = nn.Embedding(50, 24)
    q = quantized_module(module, scheme(weight))
    indices = torch.tensor([[3, 3, 49], [0, 7, 1]])
    assert torch.equal(q(indices), q.dequantized_weight()[indices])
    assert q(torch.tensor(5)).shape == (24,)
    assert q(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0, 24)
    assert (q.kernel, q.simulated) == ("packed rows", False)


def test_int8_rows_against_the_formula(scheme, ref):
    module = nn.Embedding(10, 16)
    q = quantized_module(
        module, scheme("int8 channel", "uint8 asym", "static")
    )  # its input is indices: no range needed
    expected = ref.rounded_weight(module.weight.detach())
    torch.testing.assert_close(q(torch.arange(10)).double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("weight", "bits"), [("int8 channel", 8), ("int4 channel", 4), ("int3 channel", 3), ("int2 channel", 2)]
)
def test_table_takes_its_bits(scheme, weight, bits):
    q = quantized_module(nn.Embedding(100, 64), scheme(weight))
    assert q.weight_packed.numel() == 100 * 64 * bits // 8
    assert sum(t.nbytes for t in q.state_dict().values()) == 100 * 64 * bits // 8 + 100 * 4


def test_type_follows_the_module(scheme):
    q = quantized_module(nn.Embedding(10, 16).bfloat16(), scheme("int8 channel"))
    assert q(torch.tensor([1])).dtype == torch.bfloat16


def test_max_norm_is_refused(scheme):
    with pytest.raises(QuantizationError, match="max_norm"):
        quantized_module(nn.Embedding(10, 16, max_norm=1.0), scheme("int8 channel"))


def test_unknown_rows_are_errors(scheme):
    with pytest.raises(IndexError):
        quantized_module(nn.Embedding(10, 16), scheme("int4 channel"))(torch.tensor([10]))
