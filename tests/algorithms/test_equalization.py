"""Equalization keeps what two layers compute and makes their ranges meet."""

from __future__ import annotations

import numpy as np
import pytest

from neural_compressor.algorithms import equalize, equalizing_scale
from neural_compressor.errors import QuantizationError


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-5, 6, (shape[0], *(1 for _ in shape[1:]))))).astype(
        np.float32
    )


def test_two_linear_layers_with_relu_compute_the_same() -> None:
    first, second, bias, x = normal(16, 8), normal(4, 16, seed=1), normal(16, seed=2), normal(10, 8, seed=3)
    a, b, c = equalize(first, second, bias)
    before = np.maximum(x @ first.T + bias, 0) @ second.T
    np.testing.assert_allclose(np.maximum(x @ a.T + c, 0) @ b.T, before, rtol=1e-3, atol=1e-3 * np.abs(before).max())


@pytest.mark.parametrize("shapes", [((16, 8), (4, 16)), ((16, 8, 3, 3), (4, 16, 1, 1)), ((16, 8, 3), (4, 16))])
def test_ranges_meet(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    first, second, bias = equalize(normal(*shapes[0]), normal(*shapes[1], seed=1))
    out_range = np.abs(first).reshape(16, -1).max(1)
    in_range = np.abs(np.moveaxis(second, 1, 0)).reshape(16, -1).max(1)
    np.testing.assert_allclose(out_range, in_range, rtol=1e-5)
    assert bias is None


def test_a_channel_without_weights_is_left_alone() -> None:
    first, second = normal(3, 2), normal(2, 3, seed=1)
    first[0], second[:, 1] = 0, 0
    assert equalizing_scale(first, second)[:2].tolist() == [1, 1]


def test_layers_that_do_not_follow_one_another_are_refused() -> None:
    with pytest.raises(QuantizationError, match="do not follow one another"):
        equalize(normal(3, 2), normal(2, 4))
