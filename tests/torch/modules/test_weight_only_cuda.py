"""Weight-only layers on a GPU."""

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import LayerResult, Rotation, double_quant, hqq, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SCHEMES = {
    "int4 g32": (TensorScheme(dtype("int4"), granularity=PerGroup(32)), "cuda int4pack"),
    "uint4 asym g64": (TensorScheme(dtype("uint4"), False, PerGroup(64)), "cuda int4pack"),
    "uint4 asym g128": (TensorScheme(dtype("uint4"), False, PerGroup(128)), "cuda int4pack"),
    "int4 channel": (TensorScheme(dtype("int4"), granularity=PER_CHANNEL), "cuda int4pack"),
    "int3 g32": (TensorScheme(dtype("int3"), granularity=PerGroup(32)), "cuda int4pack"),
    "uint2 asym g32": (TensorScheme(dtype("uint2"), False, PerGroup(32)), "cuda int4pack"),
    "int8 channel": (TensorScheme(dtype("int8"), granularity=PER_CHANNEL), "cuda int4pack twice"),
    "uint8 asym g64": (TensorScheme(dtype("uint8"), False, PerGroup(64)), "cuda int4pack twice"),
    "mxfp4": (TensorScheme(dtype("mxfp4")), "cuda int4pack twice"),
    "nf4 g64": (TensorScheme(dtype("nf4"), granularity=PerGroup(64)), "dequantize"),
    "int4 g16": (TensorScheme(dtype("int4"), granularity=PerGroup(16)), "dequantize"),
    "nvfp4": (TensorScheme(dtype("nvfp4")), "dequantize"),
}


def made(weight, result):
    return WeightOnlyLinear.from_layer(nn.Linear(weight.shape[1], weight.shape[0]), result)


def error(y, expected):
    return float((y.double().cpu() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("shape", [(64, 256), (20, 576), (33, 100), (4096, 1024)], ids=str)
@pytest.mark.parametrize(("scheme", "kernel"), SCHEMES.values(), ids=SCHEMES)
def test_every_kernel_is_the_product(scheme, kernel, shape):
    weight = torch.randn(shape) * 0.1
    layer = made(weight, LayerResult(rtn(weight, scheme))).to("cuda")
    assert layer.kernel_for(1) == kernel
    for rows in (1, 3, 17, 1000):
        for dtype_ in (torch.bfloat16, torch.float16, torch.float32):
            x = torch.randn(rows, shape[1]).to(dtype_)
            expected = x.double() @ rtn(weight, scheme).dequantize().double().T + layer.bias.double().cpu()
            y = layer(x.cuda())
            assert (y.device.type, y.dtype, y.shape) == ("cuda", dtype_, expected.shape)
            assert error(y, expected) < 8e-3


def test_exact_is_float32():
    weight, x = torch.randn(64, 256), torch.randn(5, 256)
    layer = made(weight, LayerResult(rtn(weight, SCHEMES["int4 g32"][0]))).to("cuda")
    layer.exact = True
    expected = x.double() @ layer.dequantized_weight().double().cpu().T + layer.bias.double().cpu()
    assert error(layer(x.cuda()), expected) < 1e-5


def test_what_comes_before_the_product():
    weight, x = torch.randn(64, 256), torch.randn(5, 256)
    array = hqq(weight, TensorScheme(dtype("uint4"), False, PerGroup(64)))
    result = LayerResult(array, torch.randperm(256), torch.rand(256) + 0.5, Rotation(256, seed=3))
    layer = made(weight, result).to("cuda")
    assert layer.kernel_for(1) == "cuda int4pack"
    expected = x.double() @ result.dequantize().double().T + layer.bias.double().cpu()
    assert error(layer(x.cuda()), expected) < 8e-3


def test_moving_there_and_back_changes_nothing():
    weight, x = torch.randn(64, 256), torch.randn(2, 256)
    layer = made(weight, LayerResult(rtn(weight, SCHEMES["uint4 asym g64"][0])))
    before, y = {name: tensor.clone() for name, tensor in layer.state_dict().items()}, layer(x)
    layer.to("cuda")(x.cuda())
    back = layer.to("cpu")
    assert all(torch.equal(tensor, before[name]) for name, tensor in back.state_dict().items())
    assert torch.equal(back(x), y)


def test_made_on_the_gpu():
    weight = torch.randn(64, 256, device="cuda")
    module = nn.Linear(256, 64).to("cuda")
    layer = WeightOnlyLinear.from_layer(module, LayerResult(rtn(weight, SCHEMES["int4 g32"][0])))
    assert all(tensor.device.type == "cuda" for tensor in layer.state_dict().values())
    assert layer.kernel_for(1) == "cuda int4pack"


def test_the_empty_batch():
    layer = made(torch.randn(64, 256), LayerResult(rtn(torch.randn(64, 256), SCHEMES["int4 g32"][0]))).to("cuda")
    assert layer(torch.empty(2, 0, 256, device="cuda")).shape == (2, 0, 64)


@pytest.mark.parametrize("name", ["int4 g32", "uint4 asym g64", "nf4 g64"])
def test_quantized_scales_compute_as_on_the_cpu(name):
    weight, x = torch.randn(64, 256), torch.randn(5, 256)
    array = double_quant(rtn(weight, SCHEMES[name][0]), TensorScheme(dtype("int6"), True, PerGroup(8)))
    layer = made(weight, LayerResult(array)).to("cuda")
    assert layer.kernel_for(1) == SCHEMES[name][1]
    assert torch.equal(layer.stored_weight().dequantize().cpu(), array.dequantize())
    expected = x.double() @ array.dequantize().double().T + layer.bias.double().cpu()
    assert error(layer(x.cuda()), expected) < 8e-3
    assert {t.device.type for t in layer.state_dict().values()} == {"cuda"}
