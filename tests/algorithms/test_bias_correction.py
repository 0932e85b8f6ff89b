"""The mean error of a layer, where it is worth correcting."""

from __future__ import annotations

import numpy as np

from neural_compressor.algorithms import mean_error


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
