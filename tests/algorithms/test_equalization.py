"""Scales that make two layers in a row equally large."""

import numpy as np
import torch

from neural_compressor.algorithms.equalization import equalizing_scale


def test_both_sides_end_at_the_geometric_mean():
    generator = np.random.default_rng(0)
    first, second = generator.uniform(0.1, 10, 16).astype(np.float32), generator.uniform(0.1, 10, 16).astype(np.float32)
    scale = equalizing_scale(first, second)
    np.testing.assert_allclose(first / scale, np.sqrt(first * second), rtol=1e-6)
    np.testing.assert_allclose(second * scale, np.sqrt(first * second), rtol=1e-6)
    found = equalizing_scale(torch.from_numpy(first), torch.from_numpy(second))
    np.testing.assert_allclose(found.numpy(), scale, rtol=1e-6)


def test_channels_without_weights_are_left():
    assert equalizing_scale(np.float32([0, 2, 0]), np.float32([3, 0, 0])).tolist() == [1, 1, 1]
