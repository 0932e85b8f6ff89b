import numpy as np
import pytest
import torch

from neural_compressor.algorithms import Rotation
from neural_compressor.torch.modules.input_rotation import rotated


def sylvester(n):
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / n**0.5


@pytest.mark.parametrize(
    ("features", "block"), [(1, 1), (2, 2), (8, 8), (32, 32), (96, 32), (96, 4), (576, 64), (5, 1)]
)
def test_blocks_are_turned_by_the_matrix_of_sylvester(features, block):
    x = torch.randn(3, features, dtype=torch.float64)
    blocks = x.numpy().reshape(3, -1, block) @ sylvester(block)
    found = rotated(x, Rotation(features, block))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), blocks.reshape(3, features), atol=1e-6)


def test_an_empty_batch():
    assert rotated(torch.empty(2, 0, 64), Rotation(64, seed=1)).shape == (2, 0, 64)


@pytest.mark.parametrize("shape", [(64,), (2, 3, 64)])
def test_signs_are_those_of_the_seed(shape):
    x, turn = torch.randn(shape), Rotation(64, seed=11)
    assert rotated(x, turn).shape == shape
    torch.testing.assert_close(rotated(x, turn), turn.apply(x))
    assert not torch.allclose(rotated(torch.ones(64), turn), rotated(torch.ones(64), Rotation(64, seed=12)))


def test_halves_are_turned_in_float32():
    x = torch.randn(4, 1024).bfloat16()
    assert rotated(x, Rotation(1024)).dtype == torch.float32
    torch.testing.assert_close(rotated(x, Rotation(1024)), Rotation(1024).apply(x.float()))
