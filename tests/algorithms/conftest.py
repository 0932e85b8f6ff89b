"""Weights and inputs that look like those of a language model: heavy tails, strong correlations, unequal inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics


def correlated(count: int, inputs: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((inputs, inputs)) * np.exp(-np.arange(inputs) / (inputs / 6))[:, None]
    mix = (mix / np.sqrt(inputs) + 0.1 * np.eye(inputs)) * np.exp(0.7 * rng.standard_normal(inputs))
    return (np.random.default_rng(seed + 1).standard_normal((count, inputs)) @ mix).astype(np.float32)


def heavy_tailed(rows: int, inputs: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed + 2).standard_t(5, (rows, inputs)) / np.sqrt(inputs)).astype(np.float32)


@pytest.fixture
def weight() -> Any:
    return heavy_tailed(48, 96)


@pytest.fixture
def vectors() -> Any:
    return correlated(1000, 96)


@pytest.fixture
def statistics(vectors: Any) -> InputStatistics:
    seen = InputStatistics()
    seen.update(vectors)
    return seen


@pytest.fixture
def make_layer() -> Callable[..., tuple[Any, Any]]:
    """A weight, and the Hessian of inputs it has never been shown before."""

    def make(rows: int, inputs: int, seed: int = 0, count: int = 400) -> tuple[Any, Any]:
        x = correlated(count, inputs, seed)
        return heavy_tailed(rows, inputs, seed), x.T @ x

    return make
