import pytest
import torch
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.functional import Add, MatMul, Mul
from neural_compressor.torch.modules import quantized_module

OPS = {"Add": (Add(), torch.add), "Mul": (Mul(), torch.mul)}


def bounds(*tensors):
    return [(float(t.min()), float(t.max())) for t in tensors]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("activation", "how"), [("uint8 asym", {}), ("int8 sym", {"signed": True, "symmetric": True})])
@pytest.mark.parametrize("name", OPS)
def test_integer_add_and_mul(scheme, ref, *, name, activation, how, relu):
    module, op = OPS[name]
    a, b = torch.randn(3, 4, 5), torch.randn(3, 4, 5) + 0.5
    y = op(a, b).relu() if relu else op(a, b)
    q = quantized_module(module, scheme(None, activation, "static"), bounds(a, b, y), relu=relu)
    exact = op(ref.rounded(a, a.min(), a.max(), **how), ref.rounded(b, b.min(), b.max(), **how))
    exact = exact.relu() if relu else exact
    low, high = (torch.tensor(v) for v in bounds(y)[0])
    step = float(ref.qparams(low, high, 8, how.get("signed", False), how.get("symmetric", False))[0])
    difference = (q(a, b).double() - ref.rounded(exact, low, high, **how)).abs()
    assert difference.max() <= step * 1.001
    assert (difference > step / 2).float().mean() < 0.05  # ties only
    assert (q.kernel, q.simulated) == ("torch int8", False)


@pytest.mark.parametrize("name", OPS)
def test_broadcasting_and_numbers(scheme, name):
    module, op = OPS[name]
    a, b = torch.randn(3, 4, 5), torch.rand(5)
    q = quantized_module(module, scheme(None, "uint8 asym", "static"), [(-4, 4), (-4, 4), (-5, 5)])
    torch.testing.assert_close(q(a, b), op(a, b), rtol=0, atol=0.05)
    torch.testing.assert_close(q(b, a), op(a, b), rtol=0, atol=0.05)
    torch.testing.assert_close(q(a, 0.5), op(a, 0.5), rtol=0, atol=0.05)
    assert q(a.bfloat16(), b.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", OPS)
def test_without_an_output_range_it_is_simulated(scheme, ref, name):
    module, op = OPS[name]
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    q = quantized_module(module, scheme(None, "uint8 asym", "static"), bounds(a, b))
    expected = op(ref.rounded(a, a.min(), a.max()), ref.rounded(b, b.min(), b.max()))
    torch.testing.assert_close(q(a, b).double(), expected, rtol=1e-5, atol=1e-6)
    assert q.simulated


@pytest.mark.parametrize("name", OPS)
def test_a_plain_number_is_left_alone(scheme, ref, name):
    module, op = OPS[name]
    a = torch.randn(3, 4)
    q = quantized_module(module, scheme(None, "uint8 asym", "static"), bounds(a, op(a, 100.0)))
    expected = op(ref.rounded(a, a.min(), a.max()), 100.0)
    torch.testing.assert_close(q(a, 100.0).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q(100.0, a).double(), expected, rtol=1e-5, atol=1e-5)
    counts = torch.arange(4)
    assert torch.equal(q(a, counts), op(q(a, 1.0) if name == "Mul" else q(a, 0.0), counts))


@pytest.mark.parametrize("name", OPS)
def test_quint8_in(scheme, name):
    module, op = OPS[name]
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    q = quantized_module(module, scheme(None, "uint8 asym", "static"), bounds(a, b, op(a, b)))
    plain = q(a, b)
    quint8 = torch.quantize_per_tensor(a, *q.input_qparams, torch.quint8)
    assert torch.equal(q(quint8, b), plain)


@pytest.mark.parametrize("ranges", [2, 3])
@pytest.mark.parametrize("bits", [8, 4])
def test_matmul_is_simulated(scheme, ref, bits, ranges):
    a, b = torch.randn(2, 3, 8), torch.randn(2, 8, 5)
    q = quantized_module(MatMul(), scheme(None, f"uint{bits} asym", "static"), bounds(a, b, a @ b)[:ranges])
    expected = ref.rounded(a, a.min(), a.max(), bits=bits) @ ref.rounded(b, b.min(), b.max(), bits=bits)
    torch.testing.assert_close(q(a, b).double(), expected, rtol=1e-5, atol=1e-5)
    assert q.simulated


def test_dynamic_ranges_and_blocks(scheme):
    a, b = torch.randn(3, 64), torch.randn(64, 5)
    for activation in ("uint8 asym", "mxfp8"):
        q = quantized_module(MatMul(), scheme(None, activation, "dynamic"))
        error = (q(a, b) - a @ b).norm() / (a @ b).norm()
        assert 0 < error < 0.1
    b[:, 0] *= 1e4  # a column with large values does not spoil the blocks of the others
    torch.testing.assert_close(q(a, b)[:, 1:], a @ b[:, 1:], rtol=0, atol=1.5)


def test_missing_ranges_and_types(scheme):
    with pytest.raises(QuantizationError, match="needs the ranges of its operands; got 1"):
        quantized_module(Add(), scheme(None, "uint8 asym", "static"), [(0, 1)])
    with pytest.raises(QuantizationError, match="no quantized module behaves like ReLU"):
        quantized_module(nn.ReLU(), scheme(None, "uint8 asym", "static"), [(0, 1)])
