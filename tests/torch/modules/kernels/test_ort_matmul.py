"""ONNX Runtime's kernel, where it is installed."""

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import LayerResult, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.kernels import ort_matmul
from neural_compressor.torch.modules.kernels.weight_only import WEIGHT_ONLY_KERNELS

NAME = "onnxruntime MatMulNBits"
KERNEL = next(kernel for kernel in WEIGHT_ONLY_KERNELS if kernel.name == NAME)
needs_ort = pytest.mark.skipif(not ort_matmul._is_installed(), reason="onnx and onnxruntime are not installed")


def made(inputs, outputs, scheme):
    return WeightOnlyLinear.from_layer(
        nn.Linear(inputs, outputs), LayerResult(rtn(torch.randn(outputs, inputs), scheme))
    )


@needs_ort
def test_large_layers_run_on_it_while_torch_has_one_thread():
    scheme = TensorScheme(dtype("int4"), granularity=PerGroup(64))
    large = made(1024, 1024, scheme)
    assert large.kernel_for(1) == NAME
    assert made(128, 128, scheme).kernel_for(1) == "torch int4pack"
    x = torch.randn(3, 1024)
    expected = nn.functional.linear(x, large.dequantized_weight(), large.bias)
    assert float((large(x) - expected).norm() / expected.norm()) < 0.012
    torch.set_num_threads(2)
    assert made(1024, 1024, scheme).kernel_for(1) == "torch int4pack"


@needs_ort
@pytest.mark.parametrize(("size", "block"), [(16, 16), (32, 32), (64, 64), (128, 64), (96, 32), (-1, 64)])
def test_activations_are_rounded_in_blocks_of_at_most_64(size, block):
    """An outlier spoils the inputs it shares a block with, and no others."""
    part = PER_CHANNEL if size == -1 else PerGroup(size)
    weight = torch.zeros(16, 384)
    weight[:, block] = 1.0  # the first input behind the outlier's block
    array = rtn(weight, TensorScheme(dtype("int4"), granularity=part))
    stored = WeightOnlyLinear.from_layer(nn.Linear(384, 16), LayerResult(array)).stored_weight()
    x = torch.full((1, 384), 0.01)
    x[0, 0] = 10.0
    packed = KERNEL.pack(stored)
    torch.testing.assert_close(KERNEL.run(packed, x), torch.full((1, 16), 0.01), rtol=0.01, atol=0)


@needs_ort
def test_two_bits_are_held_in_two_bits():
    stored = made(256, 64, TensorScheme(dtype("int2"), granularity=PerGroup(32))).stored_weight()
    assert ort_matmul._bits_of(stored) == 2
    assert (
        ort_matmul._bits_of(made(256, 64, TensorScheme(dtype("int3"), granularity=PerGroup(32))).stored_weight()) == 4
    )


def test_without_the_package_torch_multiplies(monkeypatch):
    monkeypatch.setattr(ort_matmul, "_is_installed", lambda: False)
    assert made(1024, 1024, TensorScheme(dtype("int4"), granularity=PerGroup(64))).kernel_for(1) == "torch int4pack"
