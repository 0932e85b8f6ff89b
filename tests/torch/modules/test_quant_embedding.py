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


BAGS = {
    "rows": ({"mode": "sum"}, lambda: (torch.tensor([[3, 3, 9], [0, 2, 1]]),)),
    "offsets": ({"mode": "mean"}, lambda: (torch.tensor([3, 3, 9, 0, 2]), torch.tensor([0, 2, 2]))),
    "last offset": ({"include_last_offset": True}, lambda: (torch.tensor([3, 3, 9]), torch.tensor([0, 2, 3]))),
    "padding": ({"mode": "max", "padding_idx": 3}, lambda: (torch.tensor([[3, 3, 9], [0, 2, 1]]),)),
    "weights": ({"mode": "sum"}, lambda: (torch.tensor([[3, 3, 9]]), None, torch.tensor([[0.5, 2.0, -1.0]]))),
}


class _Inside(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *given):
        return self.part(*given)


def _exported(q, given):
    return torch.export.export(_Inside(q), given).module()


GRAPHS = {
    "compiled": lambda q, given: torch.compile(q, fullgraph=True, backend="aot_eager"),
    "exported": _exported,
    "traced": lambda q, given: torch.jit.trace(q, tuple(x for x in given if x is not None)),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("bag", BAGS)
def test_a_bag_in_a_graph_is_what_the_dequantized_table_gives(scheme, bag, graph):
    options, given = BAGS[bag]
    if bag == "weights" and graph == "traced":
        pytest.skip("torch.jit.trace takes no None between tensors")
    module = nn.EmbeddingBag(10, 6, **options).requires_grad_(False)
    q = quantized_module(module, scheme("fp8_e4m3 channel"))
    module.weight.copy_(q.dequantized_weight())
    y = GRAPHS[graph](q, given())(*(x for x in given() if x is not None or graph != "traced"))
    torch.testing.assert_close(y, module(*given()), rtol=1e-6, atol=1e-6)
