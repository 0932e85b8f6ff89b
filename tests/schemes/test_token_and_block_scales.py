"""One scale a token, and one a block of rows and columns: against loops over tokens and blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import PER_TENSOR, PER_TOKEN, PerBlock, TensorScheme, fake_quantize, quantize
from neural_compressor.schemes.ranges import scale_shape

KINDS = ["int8", "fp8_e4m3", "int4"]


def alone(x: np.ndarray, kind: str) -> np.ndarray:
    return fake_quantize(x, TensorScheme(dtype(kind), granularity=PER_TENSOR))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (7,)])
def test_a_token_is_quantized_as_if_it_were_alone(kind: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3
    scheme = TensorScheme(dtype(kind), granularity=PER_TOKEN)
    found = quantize(x, scheme)
    assert found.scale.shape == shape[:-1]
    for index in np.ndindex(shape[:-1]):
        assert np.array_equal(found.dequantize()[index], alone(x[index], kind))
    assert np.array_equal(fake_quantize(x, scheme), found.dequantize())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(8, 12), (9, 13), (3, 4), (2, 30), (1, 1)])
@pytest.mark.parametrize("block", [(4, 6), (4, 4), (16, 16), (1, 5)])
def test_a_block_is_quantized_as_if_it_were_alone(kind: str, shape: tuple[int, int], block: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    scheme = TensorScheme(dtype(kind), granularity=PerBlock(*block))
    found = quantize(x, scheme)
    rows, columns = math.ceil(shape[0] / block[0]), math.ceil(shape[1] / block[1])
    assert found.scale.shape == (rows, columns) == scale_shape(shape, PerBlock(*block))
    values = found.pack().unpack().dequantize()
    for i in range(rows):
        for j in range(columns):
            part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            assert np.array_equal(values[part], alone(x[part], kind)), (i, j)


def test_torch_gives_the_same() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((9, 13)).astype(np.float32)
    for granularity in (PER_TOKEN, PerBlock(4, 6)):
        scheme = TensorScheme(dtype("int8"), granularity=granularity)
        found = quantize(torch.from_numpy(x), scheme).dequantize()
        assert np.array_equal(found.numpy(), quantize(x, scheme).dequantize())


@pytest.mark.parametrize("granularity", [PER_TOKEN, PerBlock(), PerBlock(4, 64)])
def test_schemes_round_trip_as_plain_data(granularity: object) -> None:
    scheme = TensorScheme(dtype("fp8_e4m3"), granularity=granularity)
    assert TensorScheme.from_dict(scheme.to_dict()) == scheme


def test_a_block_is_128_by_128_where_nothing_is_said() -> None:
    said = {"dtype": "fp8_e4m3", "granularity": "per_block"}
    assert TensorScheme.from_dict(said).granularity == PerBlock(128, 128)
    for size in ([128], [0, 128], "128x128", [128, True]):
        with pytest.raises(ConfigError, match="block_size"):
            TensorScheme.from_dict({**said, "block_size": size})


def test_tensors_without_tokens_or_blocks_are_refused() -> None:
    with pytest.raises(QuantizationError, match="no tokens"):
        quantize(np.float32(1.0), TensorScheme(dtype("int8"), granularity=PER_TOKEN))
    with pytest.raises(QuantizationError, match="no matrix"):
        quantize(np.ones((2, 3, 4), np.float32), TensorScheme(dtype("int8"), granularity=PerBlock()))
    with pytest.raises(ConfigError, match="no range to observe beforehand"):
        make_observer(TensorScheme(dtype("int8"), granularity=PER_TOKEN))
