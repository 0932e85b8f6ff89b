"""The Triton kernel against the array function, to the bit: on a GPU, or in Triton's interpreter.

Without a GPU: ``TRITON_INTERPRET=1 pytest tests/torch/modules/kernels/test_block_triton.py`` where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import contextmanager

import pytest
import torch

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.block_rounding import FASTER, round_in_arrays
from neural_compressor.torch.modules.kernels import block_triton
from neural_compressor.torch.modules.kernels.block_triton import TritonBlockRounding

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (torch.cuda.is_available() or INTERPRETED),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
NAMES = [
    *("mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2"),
    *("mxint8", "mxint4", "mxint2", "mxfp4_b16", "mxfp8_b48", "nvfp4"),
]


def values(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randint(-20, 20, (rows, width), generator=generator))
    x = torch.randn(rows, width, generator=generator) * spread
    x[0] = 0
    x[1] = torch.randint(-64, 64, (width,), generator=generator) / 16.0
    x[2] *= 2.0**-120
    x[3] *= 2.0**100
    return x.to(DEVICE)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    nan = wanted.isnan()
    return torch.equal(found.isnan(), nan) and torch.equal(
        found[~nan].view(torch.int32), wanted[~nan].view(torch.int32)
    )


@needs_triton
@pytest.mark.parametrize("rounding", ["even", "nearest", "floor"])
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_gives_the_same_bits(name, rounding) -> None:
    kernel, scheme = TritonBlockRounding(), TensorScheme(dtype(name), rounding=rounding)
    assert kernel.fits(scheme)
    for width in (96, 40):
        x = values(7, width)
        assert same(kernel(x, scheme), round_in_arrays(x, scheme))
    batch = values(8, 64).reshape(2, 4, 64)
    assert same(kernel(batch, scheme), round_in_arrays(batch, scheme))


@needs_triton
@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "mxfp8"])
def test_blocks_with_nan_or_inf_are_nan(name) -> None:
    x, scheme = torch.randn(3, 96, device=DEVICE), TensorScheme(dtype(name))
    x[0, 3], x[1, 40], x[2, 95] = torch.nan, torch.inf, -torch.inf
    found = TritonBlockRounding()(x, scheme)
    assert int(found.isnan().sum()) == 96
    assert same(found, round_in_arrays(x, scheme))


@needs_triton
def test_a_scale_of_the_tensor_that_is_known_is_taken() -> None:
    x, scheme, whole = values(6, 64), TensorScheme(dtype("nvfp4")), torch.tensor(0.01, device=DEVICE)
    x[5, 3] = torch.inf
    assert same(TritonBlockRounding()(x, scheme, whole), round_in_arrays(x, scheme, whole))


def test_what_the_kernel_does_not_know_runs_in_arrays() -> None:
    kernel = TritonBlockRounding()
    assert not kernel.fits(TensorScheme(dtype("mxfp4"), rounding="dither"))
    assert not kernel.fits(TensorScheme(dtype("int8")))
    assert isinstance(FASTER["cuda"], TritonBlockRounding)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "mxint8", "nvfp4"])
def test_a_large_tensor_and_a_layer_on_the_gpu(name) -> None:
    from torch import nn

    from neural_compressor.torch.quantization import MXQuantConfig, quantize

    x, scheme = torch.randn(2048, 4096, device="cuda"), TensorScheme(dtype(name))
    assert same(TritonBlockRounding()(x, scheme), round_in_arrays(x, scheme))
    element = {"mxfp4": "fp4", "mxfp8": "fp8_e4m3", "mxint8": "int8", "nvfp4": "nvfp4"}[name]
    config = MXQuantConfig(w_dtype=element, act_dtype=element)
    layer = quantize(nn.Sequential(nn.Linear(256, 128)).cuda(), config, quiet=True)
    x = torch.randn(32, 256, device="cuda")
    assert same(layer[0]._rounded(x), round_in_arrays(x, layer[0].scheme.activation))
    with torch.no_grad():
        assert torch.allclose(layer(x).cpu(), layer.cpu()(x.cpu()), rtol=2e-2, atol=2e-2)


def test_the_kernel_is_launched_on_the_device_of_the_tensor(monkeypatch) -> None:
    entered: list[torch.Tensor] = []

    @contextmanager
    def device_of(x):
        entered.append(x)
        yield
        entered.clear()

    class Kernel:
        def __getitem__(self, grid):
            return lambda x, out, *more, **rest: out.copy_(x) if entered[0].device == x.device else None

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(block_triton, "_kernel", Kernel)
    x = torch.randn(2, 32)
    assert torch.equal(TritonBlockRounding()(x, TensorScheme(dtype("mxfp4"))), x)
    assert not entered
