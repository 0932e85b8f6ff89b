"""Orthogonal matrices of any size: orthonormal, mixing every pair of inputs, and those that leave a mean where it is."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.algorithms import Orthogonal
from neural_compressor.errors import ConfigError, QuantizationError


@given(st.integers(1, 100), st.integers(0, 5), st.booleans())
def test_it_is_orthonormal(features: int, seed: int, keeps_mean: bool) -> None:
    matrix = Orthogonal(features, seed, keeps_mean).matrix
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(features), atol=1e-12)


@given(st.integers(1, 100), st.integers(0, 5))
def test_the_mean_is_subtracted_before_or_behind_the_turn_alike(features: int, seed: int) -> None:
    centre = np.eye(features) - 1 / features
    matrix = Orthogonal(features, seed, keeps_mean=True).matrix
    np.testing.assert_allclose(centre @ matrix, matrix @ centre, atol=1e-12)


def test_a_power_of_two_is_a_hadamard_matrix_behind_signs() -> None:
    matrix = Orthogonal(16, seed=3).matrix
    signs = np.sign(matrix[:, 0])  # the first column of a Hadamard matrix is ones
    np.testing.assert_allclose(signs[:, None] * matrix, scipy.linalg.hadamard(16) / 4, atol=1e-12)


@pytest.mark.parametrize("features", [24, 48, 576])
@pytest.mark.parametrize("keeps_mean", [False, True])
def test_one_large_input_reaches_every_output(features: int, keeps_mean: bool) -> None:
    rows = np.abs(Orthogonal(features, seed=1, keeps_mean=keeps_mean).matrix)
    # A block-diagonal matrix would leave most of a row at zero.
    assert (rows > 1e-12).mean() > 0.7
    assert rows.max(axis=1).mean() < 0.8


def test_seeds_differ_and_repeat() -> None:
    assert np.array_equal(Orthogonal(12, 1).matrix, Orthogonal(12, 1).matrix)
    assert not np.allclose(Orthogonal(12, 1).matrix, Orthogonal(12, 2).matrix)


def test_runs_are_turned_alike_in_the_type_they_have() -> None:
    x, turn = np.random.default_rng(0).standard_normal((3, 20)), Orthogonal(5, 2)
    by_hand = np.concatenate([run @ turn.matrix for run in np.split(x, 4, axis=1)], axis=1)
    np.testing.assert_allclose(turn.apply(x), by_hand, atol=1e-12)
    assert turn.apply(torch.from_numpy(x)).dtype == torch.float64
    np.testing.assert_allclose(turn.apply(torch.from_numpy(x)).numpy(), by_hand, atol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"of 5 inputs cannot turn an array of shape \(2, 7\)"):
        Orthogonal(5).apply(np.zeros((2, 7)))
    with pytest.raises(ConfigError, match="at least one input, not 0"):
        Orthogonal(0)
