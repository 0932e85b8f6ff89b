"""The factor of the inverse Hessian, against NumPy's own inverse and Cholesky."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms.hessian_factor import inverse_factor
from neural_compressor.errors import QuantizationError


def moments(inputs: int, count: int, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal((count, inputs))
    return x.T @ x


@pytest.mark.parametrize("inputs", [1, 2, 127, 128, 129, 200, 500])
def test_it_is_the_upper_cholesky_factor_of_the_damped_inverse(inputs: int) -> None:
    hessian = moments(inputs, 3 * inputs)
    relative = hessian / hessian.diagonal().mean() + 0.02 * np.eye(inputs)
    expected = np.linalg.cholesky(np.linalg.inv(relative)).T
    factor = inverse_factor(hessian.astype(np.float32), 0.02)
    assert factor.dtype == np.float32
    np.testing.assert_allclose(factor, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(factor, np.triu(factor))


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_the_size_of_the_inputs_does_not_matter(size: float) -> None:
    hessian = moments(20, 60).astype(np.float32)
    np.testing.assert_allclose(
        inverse_factor(hessian * np.float32(size)), inverse_factor(hessian), rtol=1e-4, atol=1e-5
    )


def test_dead_inputs_have_nothing_to_do_with_others() -> None:
    hessian = moments(6, 30).astype(np.float32)
    hessian[2, :] = hessian[:, 2] = 0.0
    factor = inverse_factor(hessian, 0.0)
    np.testing.assert_allclose(factor[2], np.eye(6)[2], atol=1e-6)
    np.testing.assert_allclose(factor[:, 2], np.eye(6)[2], atol=1e-6)
    np.testing.assert_array_equal(inverse_factor(np.zeros((3, 3), np.float32)), np.eye(3))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_after_a_failure_it_starts_from_the_same_matrix(library: str, caplog: pytest.LogCaptureFixture) -> None:
    hessian = moments(300, 20).astype(np.float32)
    if library == "torch":
        hessian = pytest.importorskip("torch").from_numpy(hessian)
    before = np.asarray(hessian).copy()
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        grown = inverse_factor(hessian, 0.0)
    np.testing.assert_array_equal(hessian, before)
    damping = float(caplog.text.split("grown to ")[1].split(". ")[0])
    np.testing.assert_array_equal(grown, inverse_factor(hessian, damping))
    assert inverse_factor(hessian, 0.0, overwrite=True) is hessian
    np.testing.assert_array_equal(hessian, grown)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_damping_grows_until_there_is_a_factor(library: str, caplog: pytest.LogCaptureFixture) -> None:
    hessian = moments(40, 2).astype(np.float32)
    if library == "torch":
        hessian = pytest.importorskip("torch").from_numpy(hessian)
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        factor = np.asarray(inverse_factor(hessian, 0.0))
    assert np.isfinite(factor).all()
    assert "grown to" in caplog.text
    assert "More calibration samples" in caplog.text


def test_what_is_no_sum_of_squares_is_refused_in_the_end() -> None:
    hessian = np.eye(3, dtype=np.float32)
    hessian[0, 1] = hessian[1, 0] = 1e30
    with pytest.raises(QuantizationError, match="not a sum of x xᵀ"):
        inverse_factor(hessian)
