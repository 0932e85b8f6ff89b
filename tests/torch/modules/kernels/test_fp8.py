"""Products of 8-bit floats against the simulation, on the `torch._scaled_mm` of the CPU, which is too slow for the table."""

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PER_TOKEN, OpScheme, PerBlock, PerGroup, Scaling, TensorScheme
from neural_compressor.torch.modules import quantized_module
from neural_compressor.torch.modules.kernels import fp8, table
from neural_compressor.torch.modules.kernels.fp8 import (
    FP8_KERNELS,
    Fp8Kernel,
    InputRule,
    codes_of,
    largest_of,
    quantized_rows,
    scale_of,
    scaled_product,
)

E4M3, E5M2 = dtype("fp8_e4m3"), dtype("fp8_e5m2")
POW2 = Scaling("maxabs", "pow2", 0.5)


def tensor(kind=E4M3, **more):
    return TensorScheme(kind, **more)


SCHEMES = {
    "tensor": OpScheme(tensor(), tensor(), "static"),
    "tensor, unit": OpScheme(tensor(scaling=Scaling("unit")), tensor(scaling=Scaling("unit")), "static"),
    "channel": OpScheme(tensor(granularity=PER_CHANNEL), tensor(scaling=POW2), "static"),
    "dynamic tensor": OpScheme(tensor(), tensor(), "dynamic"),
    "token": OpScheme(tensor(granularity=PER_CHANNEL), tensor(granularity=PER_TOKEN), "dynamic"),
    "token, pow2": OpScheme(tensor(scaling=POW2), tensor(granularity=PER_TOKEN, scaling=POW2), "dynamic"),
    "e5m2 inputs": OpScheme(tensor(), tensor(E5M2), "static"),
}


def _multiplies_rows():
    """Whether the product of the CPU takes a scale for each row: it does from torch 2.13 on."""
    codes, one = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(codes, codes.t(), scale_a=one, scale_b=one.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


@pytest.fixture
def on_cpu(monkeypatch, name):
    """The rows of the GPU as if they were for the CPU."""
    if name in ("channel", "token", "token, pow2") and not _multiplies_rows():
        pytest.skip("the product of 8-bit floats of this torch has no scales for rows on the CPU")
    kernels = [Fp8Kernel("cpu fp8", "cpu", FP8_KERNELS[0].takes, lambda: True, scaled_product)]
    monkeypatch.setattr(table, "KERNELS", [*kernels, *table.KERNELS])


@pytest.mark.parametrize("rounding", ["none", "pow2", "gaudi3"])
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=lambda kind: kind.name)
def test_scales_are_those_of_the_scheme(kind, rounding):
    magnitudes = torch.tensor([0.0, 1e-42, 1e-30, 1e-3, 0.4375, 1.0, 7.0, 448.0, 1e4, 3e38, torch.finfo().max])
    for backoff in (1.0, 0.25, 1e-3, 1e-6):
        scheme = TensorScheme(kind, scaling=Scaling("maxabs", rounding, backoff))
        found = scale_of(magnitudes, InputRule.of(scheme))
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, scheme.scaling.scale(magnitudes, kind), rtol=0, atol=0)
        assert torch.isnan(scale_of(torch.tensor([torch.nan, torch.inf]), InputRule.of(scheme))).all()


def test_codes_by_a_reciprocal_are_those_of_a_division():
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(-12, 12, 64)[:, None]
    rule = InputRule.of(tensor(granularity=PER_TOKEN, scaling=POW2))
    scale = scale_of(values.abs().amax(-1, keepdim=True), rule)
    divided = (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(codes_of(values, scale, rule).view(torch.uint8), divided.view(torch.uint8))


@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=lambda kind: kind.name)
@pytest.mark.parametrize("scaling", [None, POW2])
def test_compiled_codes_are_those_of_the_eager_layer(kind, scaling):
    ends = torch.tensor(
        [0.0, -0.0, 1e-9, 447.0, 448.0, 449.0, 463.9, 464.0, 57344.0, 61440.0, 1e30, torch.inf, torch.nan]
    )
    values, rule = torch.cat([ends, -ends, torch.randn(999) * 300]), InputRule.of(tensor(kind, scaling=scaling))
    for scale in (torch.tensor(1.0), torch.tensor(4.0), torch.tensor(torch.nan)):
        codes = torch.compile(codes_of, backend="eager", fullgraph=True)(values, scale, rule)
        assert torch.equal(codes.view(torch.uint8), codes_of(values, scale, rule).view(torch.uint8))


@pytest.mark.parametrize("rounding", ["none", "pow2", "gaudi3"])
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=lambda kind: kind.name)
def test_a_scale_that_is_found_leaves_no_value_beyond_the_largest(kind, rounding):
    values = (
        torch.randn(4096, 32, generator=torch.Generator().manual_seed(0))
        * 2 ** torch.linspace(-140, 120, 4096)[:, None]
    )
    rule = InputRule.of(tensor(kind, granularity=PER_TOKEN, scaling=Scaling("maxabs", rounding)))
    codes, scale = quantized_rows(values, None, rule)
    expected = (values.double() / scale).clamp(-rule.largest, rule.largest).float().to(rule.dtype)
    assert not codes.float().isnan().any()
    same = codes.view(torch.uint8) == expected.view(torch.uint8)
    assert same.float().mean() > 0.9999, "but for ties, which two roundings see differently"


def test_the_largest_magnitude_is_nan_where_there_is_one_and_infinite_where_there_is_no_nan():
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    values[1, 3], values[2, 5], values[3, 7], values[3, 8], values[4] = -500.0, -torch.inf, torch.nan, torch.inf, -0.0
    expected = values.abs().amax(-1)
    assert torch.equal(largest_of(values, -1).nan_to_num(-1.0), expected.nan_to_num(-1.0))
    assert largest_of(values[:3], None) == torch.inf
    assert largest_of(values[:2], None) == 500.0
    assert largest_of(-values, None).isnan()


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.usefixtures("on_cpu")
def test_a_layer_on_a_kernel_gives_what_the_simulation_gives(name):
    torch.manual_seed(0)
    module, x = nn.Linear(64, 32), torch.randn(3, 5, 64)
    bounds = [(float(x.min()), float(x.max()))]
    q = quantized_module(module, SCHEMES[name], bounds, relu=True)
    assert q.kernel == "cpu fp8"
    assert not q.why_simulated()
    for rows in (x, torch.randn(4, 17, 64).clamp(*bounds[0])):  # few, and more than few
        y = q(rows)
        assert y.shape == (*rows.shape[:2], 32)
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, q._simulated(rows), rtol=1e-2, atol=1e-2)
    assert q(x[:0]).shape == (0, 5, 32)
    assert q(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(q(x[0, 0]), q._simulated(x[0, 0]), rtol=1e-2, atol=1e-2)


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.usefixtures("on_cpu")
def test_the_compiler_sees_through_a_layer(name):
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    layer = quantized_module(nn.Linear(64, 32), SCHEMES[name], [(float(x.min()), float(x.max()))])
    model = nn.Sequential(nn.LayerNorm(64), layer)
    found = []

    def look(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        compiled = torch.compile(model, backend=look, fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
    assert any("_scaled_mm" in target for target in found)
    assert not any("call_layer" in target for target in found)


@pytest.mark.slow  # the compiler takes its time
def test_what_the_compiler_keeps_in_memory_are_the_rows_wherever_they_are(monkeypatch):
    monkeypatch.setattr(fp8, "_WIDE_ROW", 16)
    rule = InputRule.of(tensor(granularity=PER_TOKEN, scaling=POW2))

    def values(x):
        doubled = x * 2
        places = [x[3:], x[:, 16:48], x.t(), doubled[2:], doubled[:, 32:], doubled.chunk(2, -1)[1], x[:1].expand(5, 64)]
        places.append(doubled.view(4, 8, 64).transpose(0, 1).reshape(32, 64))
        found = [quantized_rows(rows, None, rule) for rows in places]
        return [codes.float() * scale for codes, scale in found]

    x = torch.randn(36, 70, generator=torch.Generator().manual_seed(0))[4:, 6:]
    for y, expected in zip(torch.compile(values, fullgraph=True)(x), values(x), strict=True):
        assert torch.equal(y, expected)


def test_which_weights_a_kernel_takes():
    rows, blocks = FP8_KERNELS
    assert rows.takes(SCHEMES["tensor"], (16, 32))
    assert not rows.takes(SCHEMES["tensor"], (16, 24))
    assert not rows.takes(OpScheme(tensor(E5M2), tensor(E5M2), "static"), (16, 32))
    gaudi2 = Scaling("maxabs", "gaudi2", 0.5)
    assert not rows.takes(OpScheme(tensor(), tensor(granularity=PER_TOKEN, scaling=gaudi2), "dynamic"), (16, 32))
    assert rows.takes(OpScheme(tensor(), tensor(scaling=gaudi2), "static"), (16, 32)), "its scale is a number by then"
    in_blocks = OpScheme(tensor(granularity=PerBlock()), tensor(granularity=PerGroup(128)), "dynamic")
    assert not rows.takes(in_blocks, (128, 512))
    assert blocks.takes(in_blocks, (128, 512))
    assert not blocks.takes(in_blocks, (128, 640))


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of a machine without a GPU")
def test_a_simulation_says_why():
    layer = quantized_module(nn.Linear(64, 32), SCHEMES["tensor"], [(-1, 1)])
    assert layer.simulated
    assert "cuda and none on cpu" in layer.why_simulated()
    assert fp8.why_not_fp8("Conv2d", SCHEMES["tensor"], (), "cuda") == (
        "8-bit floats have kernels for linear layers alone, not for Conv2d"
    )
    assert "compute capability 8.9" in fp8.why_not_fp8("Linear", SCHEMES["tensor"], (), "cuda")


def test_it_says_why_a_device_of_its_own_scales_has_none(monkeypatch):
    there = Fp8Kernel("there", "cuda", lambda scheme, shape: False, lambda: True, lambda *args: None)
    monkeypatch.setattr(table, "KERNELS", [there])
    gaudi2 = Scaling("maxabs", "gaudi2", 0.5)
    scheme = OpScheme(tensor(), tensor(granularity=PER_TOKEN, scaling=gaudi2), "dynamic")
    assert "are those of gaudi2" in fp8.why_not_fp8("Linear", scheme, (16, 32), "cuda")
    assert "in this layout" in fp8.why_not_fp8("Linear", SCHEMES["tensor"], (16, 24), "cuda")


def test_a_kernel_of_another_device_registers_itself(monkeypatch):
    """As a package for an HPU or XPU would do; here for the CPU."""

    def product(rows, weight, weight_scale, input_scale, rule):
        codes = (rows / input_scale).clamp(-rule.largest, rule.largest).to(rule.dtype)
        return (codes.float() * input_scale) @ (weight.float() * weight_scale.reshape(-1, 1)).T

    monkeypatch.setattr(table, "KERNELS", list(table.KERNELS))
    table.register(Fp8Kernel("mine", "cpu", lambda scheme, shape: True, lambda: True, product), first=True)
    x, module = torch.randn(4, 20), nn.Linear(20, 10)
    layer = quantized_module(module, SCHEMES["tensor"], [(float(x.min()), float(x.max()))])
    assert layer.kernel == "mine"
    np.testing.assert_allclose(layer(x), layer._simulated(x), rtol=1e-4, atol=1e-4)
