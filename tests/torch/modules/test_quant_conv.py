import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from neural_compressor.schemes import quantize
from neural_compressor.torch.modules import quantized_module

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SPATIAL = {1: (11,), 2: (9, 8), 3: (5, 6, 4)}

GEOMETRIES = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"padding": 1, "stride": 2},
    "dilated": {"padding": 2, "dilation": 2},
    "groups": {"groups": 2, "padding": 1},
    "depthwise": {"groups": 8, "padding": 1},
    "same": {"padding": "same"},
    "same_even": {"padding": "same", "kernel_size": 2},
    "valid": {"padding": "valid"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect_same": {"padding": "same", "kernel_size": 2, "padding_mode": "reflect"},
    "no_bias": {"padding": 1, "bias": False},
    "pointwise": {"kernel_size": 1},
}


def case(dims, geometry):
    options = {"kernel_size": 3, **GEOMETRIES[geometry]}
    x = torch.randn(2, 8, *SPATIAL[dims]) + 0.4
    return CONV[dims](8, 16, **options), x, [(float(x.min()), float(x.max()))]


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def exact(module, x, weight):
    """The float module in double precision with another weight and input."""
    twin = type(module).__new__(type(module))
    twin.__dict__ = {**module.__dict__, "_parameters": dict(module._parameters)}
    twin.weight = nn.Parameter(weight.double(), requires_grad=False)
    if module.bias is not None:
        twin.bias = nn.Parameter(module.bias.detach().double(), requires_grad=False)
    return twin(x)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_static_int8_is_the_exact_integer_convolution(scheme, ref, vnni, dims, geometry):
    module, x, ranges = case(dims, geometry)
    q = quantized_module(module, scheme("int8 channel", "uint8 asym", "static"), ranges)
    expected = exact(module, ref.rounded(x, *ranges[0]), ref.rounded_weight(module.weight.detach()))
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert q.kernel == ("onednn int8" if vnni else "simulated")


@pytest.mark.parametrize("channels", [8, 3, 1])
@pytest.mark.parametrize("geometry", ["plain", "strided", "pointwise", "groups", "depthwise"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_weights_that_are_safe_in_pairs_are_exact_on_every_cpu(scheme, dims, geometry, channels):
    options = {"kernel_size": 3, **GEOMETRIES[geometry]}
    inputs = channels * options.get("groups", 1) if geometry != "depthwise" else 8
    module = CONV[dims](inputs, 16, **options)
    # Activations at both ends of their codes and weights of one sign in each channel: what overflows if anything does.
    with torch.no_grad():
        module.weight.copy_(module.weight.abs() * torch.tensor([1.0, -1.0]).repeat(8).reshape(-1, *[1] * (dims + 1)))
    x = (torch.rand(2, inputs, *SPATIAL[dims]) > 0.3).float()
    q = quantized_module(module, scheme("int8 channel safe", "uint8 asym", "static"), [(0.0, 1.0)])
    assert q.kernel == "onednn int8"
    expected = exact(module, x.double(), q.dequantized_weight())
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_four_bits_are_simulated(scheme, ref, dims, geometry):
    module, x, ranges = case(dims, geometry)
    q = quantized_module(module, scheme("int4 channel", "uint4 asym", "static"), ranges)
    expected = exact(module, ref.rounded(x, *ranges[0], bits=4), ref.rounded_weight(module.weight.detach(), bits=4))
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert q.simulated


@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    groups=st.sampled_from([1, 2, 3, 6]),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_geometry(scheme, ref, dims, **geometry):
    options = {"kernel_size": geometry["kernel"], "padding_mode": geometry["mode"]}
    options |= {name: geometry[name] for name in ("stride", "dilation", "padding", "groups")}
    module, ranges = CONV[dims](6, 12, **options), [(-2.0, 3.1)]
    # Steps of 0.02, and no value near the middle of two: the kernel multiplies by 1 / scale, which may turn a tie.
    x = (torch.randint(-100, 156, (2, 6, *[7] * dims)) + 0.8 * torch.rand(2, 6, *[7] * dims) - 0.4) * 0.02
    q = quantized_module(module, scheme("int8 channel", "uint8 asym", "static"), ranges)
    expected = exact(module, ref.rounded(x, *ranges[0]), ref.rounded_weight(module.weight.detach()))
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_windows_that_lie_in_the_padding(scheme, ref, kernel):
    """Such a window of the integer kernel may read what is not there, in one run and not in the next."""
    for seed in range(20):
        torch.manual_seed(seed)
        module, ranges = nn.Conv2d(6, 12, kernel, padding=kernel, groups=6), [(-2.0, 3.1)]
        x = torch.randint(-100, 156, (2, 6, 7, 7)) * 0.02
        q = quantized_module(module, scheme("int8 channel", "uint8 asym", "static"), ranges)
        expected = exact(module, ref.rounded(x, *ranges[0]), ref.rounded_weight(module.weight.detach()))
        torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("weight", "activation", "how_w", "how_a"),
    [
        ("int8 tensor", "uint8 asym", {"per_channel": False}, {}),
        ("int8 channel", "int8 sym", {}, {"signed": True, "symmetric": True}),
        ("int8 channel", "int8 asym", {}, {"signed": True}),
        ("int8 channel", "uint8 sym", {}, {"symmetric": True}),
        ("int8 asym channel", "uint8 asym", {"symmetric": False}, {}),
        ("uint8 asym channel", "uint8 asym", {"symmetric": False, "signed": False}, {}),
    ],
)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_int8_schemes(scheme, ref, vnni, *, dims, mode, weight, activation, how_w, how_a, relu):
    module, x, ranges = case(dims, "padded")
    q = quantized_module(module, scheme(weight, activation, mode), ranges, relu=relu)
    expected = exact(module, ref.rounded(x, *ranges[0], **how_a), ref.rounded_weight(module.weight.detach(), **how_w))
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(q(x).double(), expected, rtol=1e-5, atol=1e-5)
    symmetric = "asym" not in weight  # the kernel takes weights without zero-points
    assert q.simulated is not (vnni and symmetric)


@pytest.mark.parametrize("weight", ["int8 channel", "int4 channel"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_inputs_of_every_shape_and_layout(scheme, dims, weight):
    module, x, ranges = case(dims, "padded")
    q = quantized_module(module, scheme(weight, "uint8 asym", "static"), ranges)
    y = q(x)
    assert y.is_contiguous()  # model code that calls view() relies on it
    torch.testing.assert_close(q(x[0]), y[0])
    assert q(x[0]).shape == y.shape[1:]
    assert q(x[:0]).shape == (0, *y.shape[1:])
    strided = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(q(strided), y)


@pytest.mark.parametrize(("dims", "layout"), [(2, torch.channels_last), (3, torch.channels_last_3d)])
def test_channels_last_is_kept(scheme, dims, layout):
    module, x, ranges = case(dims, "padded")
    q = quantized_module(module, scheme("int8 channel", "uint8 asym", "static"), ranges)
    y = q(x.contiguous(memory_format=layout))
    assert y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y, q(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["static", "dynamic", "weight_only"])
def test_output_has_the_type_of_the_input(scheme, dtype, kind):
    module, x, ranges = case(2, "padded")
    how = scheme("int8 channel") if kind == "weight_only" else scheme("int8 channel", "uint8 asym", kind)
    y = quantized_module(module, how, ranges)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), module(x), rtol=0.05, atol=0.05)


def test_blocks_of_activations_lie_along_channels(scheme):
    x = torch.randn(1, 64, 2, 3) * torch.logspace(-3, 3, 64).reshape(1, 64, 1, 1)
    how = scheme("mxfp8", "mxfp8", "dynamic")
    seen = quantized_module(nn.Conv2d(64, 4, 1), how)._rounded(x)
    for row in range(2):
        for column in range(3):
            for block in (slice(0, 32), slice(32, 64)):
                alone = quantize(x[0, block, row, column], how.activation).dequantize()
                assert torch.equal(seen[0, block, row, column], alone)


def test_groups_of_a_weight_cross_the_kernel_window(scheme):
    module = nn.Conv2d(8, 4, 3)
    q = quantized_module(module, scheme("int4 24"))
    assert q.weight_scale.shape == (4, 3)
    assert q.dequantized_weight().shape == module.weight.shape
