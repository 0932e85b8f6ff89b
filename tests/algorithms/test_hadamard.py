"""Rotations: orthonormal, the same as SciPy's matrices, and good against outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.algorithms import (
    ALGORITHMS,
    InputStatistics,
    Rotation,
    hadamard_matrix,
    quadratic_loss,
    rtn,
)
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PerGroup, TensorScheme


@pytest.mark.parametrize("n", [1, 2, 8, 128])
def test_powers_of_two_are_sylvesters(n: int) -> None:
    np.testing.assert_allclose(hadamard_matrix(n), scipy.linalg.hadamard(n) / np.sqrt(n), atol=1e-6)


def test_other_sizes_are_in_blocks() -> None:
    block = scipy.linalg.hadamard(4) / 2
    np.testing.assert_allclose(hadamard_matrix(12), scipy.linalg.block_diag(block, block, block), atol=1e-6)


@given(st.integers(1, 96), st.none() | st.integers(0, 5), st.data())
def test_a_rotation_is_orthonormal_and_can_be_undone(features: int, seed: int | None, data: Any) -> None:
    block = data.draw(st.none() | st.sampled_from([b for b in (1, 2, 4, 8, 16, 32) if features % b == 0]))
    rotation = Rotation(features, block, seed)
    matrix = rotation.apply(np.eye(features, dtype=np.float32))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(features), atol=1e-5)
    x = np.random.default_rng(0).standard_normal((2, 3, features)).astype(np.float32)
    np.testing.assert_allclose(rotation.apply(x), x @ matrix, atol=1e-5)
    np.testing.assert_allclose(rotation.undo(rotation.apply(x)), x, atol=1e-5)


def test_outputs_and_second_moments_turn_with_the_inputs(weight: Any, vectors: Any) -> None:
    rotation = Rotation(weight.shape[-1], seed=5)
    np.testing.assert_allclose(
        rotation.apply(vectors) @ rotation.apply(weight).T, vectors @ weight.T, rtol=1e-3, atol=1e-3
    )
    hessian = vectors.T @ vectors
    expected = rotation.apply(vectors).T @ rotation.apply(vectors)
    np.testing.assert_allclose(
        rotation.apply_to_hessian(hessian), expected, rtol=1e-3, atol=1e-2 * np.abs(expected).mean()
    )


def test_a_seed_means_the_same_in_every_library(weight: Any) -> None:
    torch = pytest.importorskip("torch")
    rotation, other = (Rotation(weight.shape[-1], seed=seed) for seed in (7, 8))
    ours, theirs = rotation.apply(weight), rotation.apply(torch.from_numpy(weight))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(ours - other.apply(weight)).max() > 0.01


def test_outliers_are_spread(statistics: InputStatistics) -> None:
    weight = np.random.default_rng(0).standard_t(2, (64, 96)).astype(np.float32)
    scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    turned = ALGORITHMS["rtn"](weight, scheme, rotation=Rotation(96, seed=0)).dequantize()
    assert ((turned - weight) ** 2).sum() < 0.5 * ((rtn(weight, scheme).dequantize() - weight) ** 2).sum()


@pytest.mark.parametrize("name", ["rtn", "gptq"])
def test_statistics_turn_with_the_weight(name: str, weight: Any, vectors: Any) -> None:
    rotation, seen, turned = Rotation(96, seed=1), InputStatistics(), InputStatistics()
    noisy = vectors + 0.1
    seen.update(noisy, vectors)
    turned.update(rotation.apply(noisy), rotation.apply(vectors))
    scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    found = ALGORITHMS[name](weight, scheme, seen, rotation=rotation, search="mse")
    by_hand = ALGORITHMS[name](rotation.apply(weight), scheme, turned, search="mse")
    assert np.mean(found.array.codes != by_hand.array.codes) < 0.02
    losses = [
        quadratic_loss(weight, v, seen.hessian) for v in (found.dequantize(), rotation.undo(by_hand.dequantize()))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_bad_input_is_refused() -> None:
    for features, block in ((12, 8), (12, 3), (12, 0), (12, 16)):
        with pytest.raises(ConfigError, match="power of two that divides the 12 inputs"):
            Rotation(features, block)
    with pytest.raises(ConfigError, match="at least one input"):
        Rotation(0)
    with pytest.raises(QuantizationError, match="cannot turn an array of shape"):
        Rotation(8).apply(np.ones((2, 9), np.float32))
