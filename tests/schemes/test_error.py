"""Signal to noise, against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import sqnr_db


def test_it_is_the_ratio_of_energies_in_decibel() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, 100)).astype(np.float32)
    expected = 10 * math.log10(sum(v * v for v in x.tolist()) / sum(v * v for v in ((x + noise) - x).tolist()))
    assert sqnr_db(x, x + noise) == pytest.approx(expected, abs=1e-4)
    assert sqnr_db(torch.from_numpy(x), torch.from_numpy(x + noise)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "expected"), [([1.0], [1.0], math.inf), ([0.0], [1.0], -math.inf), ([0.0], [0.0], math.inf)]
)
def test_ends_of_the_scale(x: list[float], y: list[float], expected: float) -> None:
    assert sqnr_db(np.float32(x), np.float32(y)) == expected


def test_large_values_do_not_overflow() -> None:
    assert sqnr_db(np.float32([3e38]), np.float32([2.7e38])) == pytest.approx(20.0)


def test_shapes_must_agree() -> None:
    with pytest.raises(QuantizationError, match=r"\(2,\) and \(1, 2\)"):
        sqnr_db(np.zeros(2, np.float32), np.zeros((1, 2), np.float32))
