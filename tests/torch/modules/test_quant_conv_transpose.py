import pytest
import torch
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules import quantized_module

CONV = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
SPATIAL = {1: (7,), 2: (5, 6), 3: (3, 4, 5)}
GEOMETRIES = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1},
    "output_padding": {"stride": 2, "padding": 1, "output_padding": 1},
    "dilated": {"dilation": 2},
    "groups": {"groups": 4},
    "no_bias": {"bias": False},
}


def channel_first(weight, groups):
    """``(in, out / groups, ...)`` to a list of the weights of each output channel, written as a loop."""
    inside = len(weight) // groups
    return [weight[g * inside : (g + 1) * inside, c] for g in range(groups) for c in range(weight.shape[1])]


def quantized_weight(ref, weight, groups, bits):
    out = torch.empty_like(weight, dtype=torch.float64)
    channels = ref.rounded_weight(torch.stack(channel_first(weight, groups)), bits=bits)
    for target, values in zip(channel_first(out, groups), channels, strict=True):
        target.copy_(values)
    return out


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_simulation_per_output_channel(scheme, ref, dims, geometry, bits):
    module = CONV[dims](8, 12, 3, **GEOMETRIES[geometry])
    x = torch.randn(2, 8, *SPATIAL[dims])
    how = scheme(f"int{bits} channel", f"uint{bits} asym", "static")
    q = quantized_module(module, how, [(float(x.min()), float(x.max()))])
    weight = quantized_weight(ref, module.weight.detach(), module.groups, bits)
    torch.testing.assert_close(q.dequantized_weight().double(), weight, rtol=1e-5, atol=1e-6)
    twin = CONV[dims](8, 12, 3, **GEOMETRIES[geometry]).double()
    twin.load_state_dict({**module.state_dict(), "weight": weight})
    expected = twin(ref.rounded(x, x.min(), x.max(), bits=bits))
    torch.testing.assert_close(q(x).double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert q.simulated
    torch.testing.assert_close(q(x[0]), q(x)[0])
    assert q(x[:0]).shape == (0, *expected.shape[1:])


def test_output_size(scheme):
    module, x = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1), torch.randn(1, 4, 5, 6)
    q = quantized_module(module, scheme("int8 channel"), relu=True)
    for size in ([9, 11], [10, 12], [9, 12]):
        assert q(x, output_size=size).shape == module(x, output_size=size).shape
        torch.testing.assert_close(q(x, output_size=size), module(x, output_size=size).relu(), rtol=0, atol=0.01)
    with pytest.raises(QuantizationError, match="makes 9 to 10 values along dimension 0"):
        q(x, output_size=[11, 12])


def test_axis_one_is_the_output_channel_too(scheme):
    module = nn.ConvTranspose1d(4, 6, 3)
    named = quantized_module(module, scheme({"dtype": "int4", "granularity": "per_channel", "axis": 1}))
    plain = quantized_module(module, scheme("int4 channel"))
    assert named.weight_scale.shape == (6,)
    assert torch.equal(named.dequantized_weight(), plain.dequantized_weight())


def test_bfloat16_stays(scheme):
    module, x = nn.ConvTranspose1d(4, 6, 3), torch.randn(2, 4, 5)
    q = quantized_module(module, scheme("int8 channel", "mxfp8", "dynamic"))
    assert q(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(q(x), module(x), rtol=0, atol=0.2)
