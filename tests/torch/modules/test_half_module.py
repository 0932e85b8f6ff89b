import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import float_op
from neural_compressor.torch.functional import Add
from neural_compressor.torch.modules import quantized_module

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(16, 8), torch.randn(3, 16)),
        (nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6)),
        (nn.LayerNorm(16), torch.randn(3, 16)),
    ],
)
def test_computes_in_half_and_returns_the_type_it_got(name, module, x):
    q = quantized_module(module, float_op(name))
    expected = type(module).forward(module_in(module, HALF[name]), x.to(HALF[name]))
    for dtype in (torch.float32, torch.bfloat16):
        assert q(x.to(dtype)).dtype == dtype
    assert torch.equal(q(x), expected.float())
    assert (q.kernel, q.simulated, q.op_type) == (name, False, type(module).__name__)
    assert next(module.parameters()).dtype == torch.float32  # the float module is left as it was


def module_in(module, dtype):
    twin = type(module).__new__(type(module))
    twin.__dict__ = {**module.__dict__}
    twin._parameters = {
        k: None if p is None else nn.Parameter(p.detach().to(dtype)) for k, p in module._parameters.items()
    }
    return twin


@pytest.mark.parametrize("name", HALF)
def test_half_the_bytes(name):
    module = nn.Linear(64, 32)
    q = quantized_module(module, float_op(name), relu=True)
    assert sum(t.nbytes for t in q.state_dict().values()) * 2 == sum(t.nbytes for t in module.state_dict().values())
    assert q.dequantized_weight().dtype == torch.float32
    assert (q(torch.randn(4, 64)) >= 0).all()


@pytest.mark.parametrize("name", HALF)
def test_code_that_reads_the_parameters_of_a_layer_runs(name):
    layer, x = nn.Linear(16, 8), torch.randn(3, 16)
    q = quantized_module(layer, float_op(name))
    y = nn.functional.linear(x, q.weight, q.bias)
    torch.testing.assert_close(y, layer(x), rtol=0, atol=0.02)


def test_indices_tuples_and_sequences():
    embedding = quantized_module(nn.Embedding(10, 4), float_op("bf16"))
    assert embedding(torch.tensor([1, 2])).dtype == torch.float32
    lstm, x = nn.LSTM(6, 5), torch.randn(3, 2, 6)
    q = quantized_module(lstm, float_op("bf16"))
    y, (h, c) = q(x, (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)))
    assert {t.dtype for t in (y, h, c)} == {torch.float32}
    torch.testing.assert_close(y, lstm(x)[0], rtol=0, atol=0.02)
    packed = pack_sequence([torch.randn(3, 6), torch.randn(2, 6)])
    assert q(packed)[0].data.dtype == torch.float32
    add = quantized_module(Add(), float_op("bf16", has_weight=False))
    assert torch.equal(add(torch.ones(2), torch.full((2,), 2**-9)), torch.ones(2))  # 8 bits of mantissa


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_quint8_input_is_understood():
    x = torch.quantize_per_tensor(torch.randn(3, 16), 0.05, 128, torch.quint8)
    module = nn.Linear(16, 8)
    y = quantized_module(module, float_op("bf16"))(x)
    torch.testing.assert_close(y, module(x.dequantize()), rtol=0, atol=0.05)


def test_overflow_and_other_precisions_are_errors():
    module = nn.Linear(2, 2)
    module.weight.data[0, 0] = 1e6
    with pytest.raises(QuantizationError, match="weight as fp16 holds 1 NaN or infinite"):
        quantized_module(module, float_op("fp16"))
    quantized_module(module, float_op("bf16"))
    with pytest.raises(QuantizationError, match="stays the float module"):
        quantized_module(module, float_op("fp32"))
