import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules import quantized_module


def bounds(x):
    return [(float(x.min()), float(x.max()))]


ACTIVATIONS = {
    "uint8 asym": {"signed": False, "symmetric": False},
    "int8 asym": {"signed": True, "symmetric": False},
    "int8 sym": {"signed": True, "symmetric": True},
    "uint8 sym": {"signed": False, "symmetric": True},
}
WEIGHTS = {
    "int8 channel": {"per_channel": True},
    "int8 tensor": {"per_channel": False},
    "int8 asym channel": {"per_channel": True, "symmetric": False},
    "int8 asym tensor": {"per_channel": False, "symmetric": False},
    "uint8 asym channel": {"per_channel": True, "signed": False, "symmetric": False},
    "uint8 sym channel": {"per_channel": True, "signed": False, "symmetric": True},
}


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_int8_is_the_exact_integer_product(scheme, ref, vnni, *, weight, activation, mode):
    module, x = nn.Linear(48, 20), torch.randn(7, 48) + 0.3
    q = quantized_module(module, scheme(weight, activation, mode), bounds(x) if mode == "static" else ())
    expected = F.linear(
        ref.rounded(x, x.min(), x.max(), **ACTIVATIONS[activation]),
        ref.rounded_weight(module.weight.detach(), **WEIGHTS[weight]),
        module.bias.detach().double(),
    )
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert q.kernel == ("simulated" if not vnni else "fbgemm int8" if mode == "static" else "fbgemm int8 dynamic")
    assert q.simulated is not vnni


@pytest.mark.parametrize("inputs", [64, 33, 7, 1])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_weights_that_are_safe_in_pairs_are_exact_on_every_cpu(scheme, mode, granularity, inputs):
    module = nn.Linear(inputs, 20)
    with torch.no_grad():  # weights of one sign in each row, and activations at both ends of their codes
        module.weight.copy_(module.weight.abs() * torch.tensor([1.0, -1.0]).repeat(10)[:, None])
    x = (torch.rand(7, inputs) > 0.3).float()
    x[:, 0] = torch.tensor([0.0, 1.0]).repeat(4)[:7]
    q = quantized_module(module, scheme(f"int8 {granularity} safe", "uint8 asym", mode), [(0.0, 1.0)])
    assert q.kernel.startswith("fbgemm int8")
    expected = F.linear(x.double(), q.dequantized_weight().double(), module.bias.detach().double())
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 12])
def test_other_bits_are_simulated(scheme, ref, bits):
    module, x = nn.Linear(48, 20), torch.randn(7, 48)
    q = quantized_module(module, scheme(f"int{bits} channel", f"uint{bits} asym", "static"), bounds(x))
    expected = F.linear(
        ref.rounded(x, x.min(), x.max(), bits=bits),
        ref.rounded_weight(module.weight.detach(), bits=bits),
        module.bias.detach().double(),
    )
    assert (q.kernel, q.simulated, q.input_qparams) == ("simulated", True, None)
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("relu", "bias"), [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("kind", ["static", "dynamic", "weight_only"])
def test_relu_and_no_bias(scheme, relu, bias, kind):
    module, x = nn.Linear(16, 8, bias=bias), torch.randn(5, 16)
    how = scheme("int8 channel") if kind == "weight_only" else scheme("int8 channel", "uint8 asym", kind)
    y, expected = quantized_module(module, how, bounds(x), relu=relu)(x), module(x)
    torch.testing.assert_close(y, expected.relu() if relu else expected, rtol=0, atol=0.05)
    assert bool((y < 0).any()) is not relu


@pytest.mark.parametrize(
    "weight", ["int4 32", "uint4 asym 16", "int3 10", "fp8_e4m3 channel", "nf4 32", "mxfp4", "nvfp4"]
)
def test_weight_only_multiplies_the_dequantized_weight(scheme, weight):
    module, x = nn.Linear(64, 24), torch.randn(6, 64)
    q = quantized_module(module, scheme(weight))
    assert q.dequantized_weight().shape == module.weight.shape
    assert 0 < (q.dequantized_weight() - module.weight).norm() / module.weight.norm() < 0.25
    q.exact = True
    torch.testing.assert_close(q(x), F.linear(x, q.dequantized_weight(), module.bias))
    torch.testing.assert_close(q.weight, q.dequantized_weight())


@pytest.mark.parametrize("activation", ["fp8_e4m3", "mxfp8", "uint8 asym channel", "int8 16"])
def test_other_activation_types_are_simulated(scheme, activation):
    module, x = nn.Linear(64, 24), torch.randn(6, 64)
    q = quantized_module(module, scheme("int8 channel", activation, "dynamic"))
    assert q.simulated
    error = (q(x) - module(x)).norm() / module(x).norm()
    assert 0 < error < 0.06


@pytest.mark.parametrize("kind", ["static", "dynamic", "weight_only"])
@pytest.mark.parametrize("weight", ["int8 channel", "int4 channel"])
def test_shapes(scheme, weight, kind):
    module, x = nn.Linear(16, 8), torch.randn(2, 3, 5, 16)
    how = scheme(weight) if kind == "weight_only" else scheme(weight, "uint8 asym", kind)
    q = quantized_module(module, how, bounds(x))
    torch.testing.assert_close(q(x).reshape(-1, 8), q(x.reshape(-1, 16)))
    torch.testing.assert_close(q(x.transpose(0, 2)), q(x.transpose(0, 2).contiguous()))
    assert q(x[0, 0, 0]).shape == (8,)
    if kind != "dynamic":
        torch.testing.assert_close(q(x[0, 0, 0]), q(x)[0, 0, 0])
    for empty in ((0, 16), (2, 0, 16)):
        assert q(torch.empty(empty)).shape == (*empty[:-1], 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["static", "dynamic", "weight_only"])
def test_output_has_the_type_of_the_input(scheme, dtype, kind):
    module, x = nn.Linear(16, 8), torch.randn(5, 16).to(dtype)
    how = scheme("int8 channel") if kind == "weight_only" else scheme("int8 channel", "uint8 asym", kind)
    y = quantized_module(module.to(dtype), how, bounds(x))(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), module(x).float(), rtol=0.02, atol=0.05)


def test_reduced_ranges_are_kept_to_128_codes(scheme, ref):
    module, x = nn.Linear(16, 8), torch.randn(5, 16)
    narrow = [(-1.0, 1.0)]  # values beyond it would reach codes above 127 if the kernel clipped at 255
    q = quantized_module(module, scheme("int8 channel reduced", "uint8 asym reduced", "static"), narrow)
    expected = F.linear(
        ref.rounded(x, -1.0, 1.0, bits=7),
        ref.rounded_weight(module.weight.detach(), bits=7, qmax=64),
        module.bias.double(),
    )
    assert x.max() > 1.5
    assert q.kernel == "fbgemm int8"  # 7-bit sums fit 16 bits on any x86
    assert q.input_qparams is None
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["int8 sym reduced", "int8 asym reduced"])
def test_reduced_signed_activations(scheme, ref, activation):
    module, x = nn.Linear(16, 8), torch.randn(5, 16)
    q = quantized_module(module, scheme("int8 channel", activation, "static"), [(-1.0, 0.8)])
    symmetric = "asym" not in activation
    inside = ref.rounded(x, -1.0, 0.8, bits=7, signed=True, symmetric=symmetric, qmax=64 if symmetric else 63)
    expected = F.linear(inside, ref.rounded_weight(module.weight.detach()), module.bias.double())
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_quint8_in_gives_the_same_as_float_in(scheme):
    module, x = nn.Linear(64, 32), torch.randn(9, 64)
    q = quantized_module(module, scheme("int8 channel safe", "int8 sym", "static"), bounds(x))
    quint8 = torch.quantize_per_tensor(x, *q.input_qparams, torch.quint8)
    torch.testing.assert_close(q(quint8), q(x), rtol=1e-6, atol=1e-6)


def test_a_simulated_op_takes_quint8(scheme):
    module, x = nn.Linear(64, 32), torch.randn(9, 64)
    q = quantized_module(module, scheme("int4 channel", "uint8 asym", "static"), bounds(x))
    quint8 = torch.quantize_per_tensor(x, float(q.input_scale), int(q.input_zero_point), torch.quint8)
    torch.testing.assert_close(q(quint8), q(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("weight", float("nan")), ("weight", float("inf")), ("bias", float("nan"))]
)
def test_values_that_are_not_finite_are_named(scheme, name, value):
    module = nn.Linear(4, 3)
    getattr(module, name).data.view(-1)[1] = value
    with pytest.raises(QuantizationError, match=f"the {name} holds 1 NaN or infinite"):
        quantized_module(module, scheme("int8 channel"))


def test_static_needs_a_finite_range(scheme):
    how = scheme("int8 channel", "uint8 asym", "static")
    with pytest.raises(QuantizationError, match="needs the calibrated range of input; got 0"):
        quantized_module(nn.Linear(4, 3), how)
    with pytest.raises(QuantizationError, match="must be finite"):
        quantized_module(nn.Linear(4, 3), how, [(0.0, float("inf"))])


def test_weights_run_along_output_channels_only(scheme):
    with pytest.raises(QuantizationError, match="axis 0"):
        quantized_module(nn.Linear(4, 3), scheme({"dtype": "int8", "granularity": "per_channel", "axis": 1}))


def test_repr_tells_type_and_kernel(scheme):
    q = quantized_module(nn.Linear(4, 3), scheme("int4 channel", "uint4 asym", "static"), [(0, 1)], relu=True)
    assert repr(q) == (
        "QuantLinear(in_features=4, out_features=3, int4, activation=uint4, mode=static, kernel='simulated', relu=True)"
    )


@pytest.mark.parametrize(("weight", "activation"), [("fp8_e4m3 tensor", "fp8_e4m3"), ("mxfp4", "mxfp8_e4m3")])
def test_eight_bit_floats_and_blocks_can_be_traced(scheme, weight, activation):
    q = quantized_module(nn.Linear(64, 20), scheme(weight, activation, "dynamic")).requires_grad_(False)
    traced = torch.jit.trace(q, torch.randn(3, 64))
    x = torch.randn(3, 64)
    assert torch.equal(traced(x), q(x))
