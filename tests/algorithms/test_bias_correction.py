"""A corrected bias brings the mean output back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, bias_correction, mean_error, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PER_CHANNEL, TensorScheme


def test_the_mean_output_is_that_of_the_float_layer(weight: Any, vectors: Any) -> None:
    vectors, noisy = vectors + 1, 0.9 * vectors + 1.2
    values = rtn(weight, TensorScheme(dtype("int3"), True, PER_CHANNEL)).dequantize()
    seen, disturbed = InputStatistics(), InputStatistics()
    seen.update(vectors)
    disturbed.update(noisy)
    wanted = (vectors @ weight.T).mean(0)
    assert np.abs((vectors @ values.T).mean(0) - wanted).max() > 0.1
    same = (vectors @ values.T).mean(0) + bias_correction(weight, values, seen.mean)
    np.testing.assert_allclose(same, wanted, atol=1e-4)
    behind = (noisy @ values.T).mean(0) + bias_correction(weight, values, disturbed.mean, seen.mean)
    np.testing.assert_allclose(behind, wanted, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused(weight: Any) -> None:
    with pytest.raises(QuantizationError, match="96 mean inputs"):
        bias_correction(weight, weight, np.ones(95, np.float32))
    with pytest.raises(QuantizationError, match="same shape"):
        bias_correction(weight, weight[:3], np.ones(96, np.float32))


def test_a_mean_error_counts_where_it_is_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(16, 200)).astype(np.float32)
    variance = np.ones(200, np.float32)
    assert not np.asarray(mean_error(noise, variance)).any()
    np.testing.assert_allclose(mean_error(noise + 1, variance), (noise + 1).mean(axis=0), rtol=1e-5)


def test_a_mean_error_counts_where_it_is_not_small_beside_what_it_is_in() -> None:
    errors = np.full((4, 3), 0.5, np.float32)
    assert np.asarray(mean_error(errors, np.full(3, 31.0**2, np.float32))).tolist() == [0.5] * 3
    assert not np.asarray(mean_error(errors, np.full(3, 33.0**2, np.float32))).any()
    assert not np.asarray(mean_error(errors[:0], np.ones(3, np.float32))).any()
