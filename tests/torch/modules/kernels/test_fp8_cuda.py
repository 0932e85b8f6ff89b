"""Layers of 8-bit floats on a GPU against the simulation, in eager mode and compiled."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PER_TOKEN, OpScheme, PerBlock, PerGroup, Scaling, TensorScheme
from neural_compressor.torch.modules import quantized_module
from neural_compressor.torch.modules.kernels.fp8 import FP8_KERNELS

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
    reason="needs an NVIDIA GPU of compute capability 8.9 or more",
)
E4M3 = dtype("fp8_e4m3")
HW = Scaling("maxabs", "gaudi3", 0.25)
FEW = Scaling("maxabs", "gaudi2", 0.25)


def tensor(**more):
    return TensorScheme(E4M3, **more)


SCHEMES = {
    "tensor": OpScheme(tensor(), tensor(), "static"),
    "tensor, hw": OpScheme(tensor(scaling=HW), tensor(scaling=HW), "static"),
    "tensor, few scales": OpScheme(tensor(scaling=FEW), tensor(scaling=FEW), "static"),
    "channel": OpScheme(tensor(granularity=PER_CHANNEL), tensor(), "static"),
    "token": OpScheme(tensor(granularity=PER_CHANNEL), tensor(granularity=PER_TOKEN), "dynamic"),
    "token, hw": OpScheme(tensor(scaling=HW), tensor(granularity=PER_TOKEN, scaling=HW), "dynamic"),
    "blocks": OpScheme(tensor(granularity=PerBlock()), tensor(granularity=PerGroup(128)), "dynamic"),
}


def layers(name, dtype):
    torch.manual_seed(0)
    module, x = nn.Linear(1024, 512), torch.randn(33, 1024)
    cpu = quantized_module(module, SCHEMES[name], [(float(x.min()), float(x.max()))])
    return cpu, copy.deepcopy(cpu).cuda(), x.to("cuda", dtype)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_kernel_gives_what_the_simulation_gives(name, kind):
    if name == "blocks" and not FP8_KERNELS[1].works():
        pytest.skip("this GPU or build of torch has no products of blocks")
    cpu, gpu, x = layers(name, kind)
    assert gpu.kernel == ("cuda fp8 blocks" if name == "blocks" else "cuda fp8")
    assert not gpu.simulated
    for rows in (1, 16, 33):
        y, expected = gpu(x[:rows]), cpu(x[:rows].cpu())
        assert y.dtype == kind
        error = (y.float().cpu() - expected.float()).norm() / expected.float().norm()
        assert error < 5e-3, "bfloat16 results, and sums in another order"


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("name", ["tensor, hw", "token, hw"])
def test_compiled_it_is_the_same(name):
    _, gpu, x = layers(name, torch.bfloat16)
    model = nn.Sequential(nn.LayerNorm(1024, device="cuda", dtype=torch.bfloat16), gpu)
    with torch.no_grad():
        y, expected = torch.compile(model, fullgraph=True)(x), model(x)
    assert (y - expected).float().norm() / expected.float().norm() < 2e-2


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("name", ["tensor, hw", "token, hw", "token"])
def test_compiled_after_a_gate_that_is_a_part_of_a_tensor_it_is_the_same(name):
    torch.manual_seed(0)
    layer = quantized_module(nn.Linear(8192, 256), SCHEMES[name], [(-9.0, 9.0)]).cuda()

    def gated(x):
        gate, up = (nn.functional.silu(x[2:]) * x[2:]).chunk(2, -1)
        return layer(gate) + layer(gate * up) + layer((x * 3)[2:, 8192:])

    x = torch.randn(40, 16384, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for rows in (x, x[:4]):
            y, expected = torch.compile(gated, fullgraph=True, dynamic=False)(rows[:-1]), gated(rows[:-1])
            assert (y - expected).float().norm() / expected.float().norm() < 2e-2


def test_what_has_no_kernel_is_simulated_and_says_why():
    module = quantized_module(nn.Linear(40, 24), SCHEMES["tensor"], [(-3, 3)]).cuda()
    assert module.simulated
    assert "multiples of 16" in module.why_simulated()
    assert module(torch.randn(2, 40, device="cuda")).shape == (2, 24)
