"""The range of least squared error, against a search by brute force over the data itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.observers import MSEObserver
from neural_compressor.schemes import PerChannel, TensorScheme, choose_qparams, fake_quantize

RNG = np.random.default_rng(4)
DATA: dict[str, Callable[[], np.ndarray]] = {
    "normal": lambda: RNG.standard_normal(5000),
    "laplace": lambda: RNG.laplace(size=5000),
    "relu": lambda: np.maximum(RNG.standard_normal(5000), 0),
    "skewed": lambda: RNG.exponential(size=5000) - 0.3,
}
SCHEMES = [
    TensorScheme(dtype(name), symmetric)
    for name in ("int8", "uint8", "int4", "uint4", "int2", "nf4", "fp4_e2m1")
    for symmetric in (True, False)
    if symmetric or isinstance(dtype(name), IntType)
]


def error(x: np.ndarray, low: float, high: float, scheme: TensorScheme) -> float:
    params = choose_qparams(np.float32(low), np.float32(high), scheme)
    return float(((fake_quantize(x, scheme, params) - x).astype(np.float64) ** 2).mean())


@pytest.mark.parametrize("shape", DATA)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: f"{s.dtype.name}-{'sym' if s.symmetric else 'asym'}")
def test_nothing_symmetric_is_much_better(shape: str, scheme: TensorScheme) -> None:
    x = DATA[shape]().astype(np.float32)
    observer = MSEObserver()
    for part in np.split(x, 5):
        observer.update(part)
    found = error(x, *observer.range(scheme), scheme)
    peak = np.abs(x).max()
    best = min(error(x, max(-t, x.min()), min(t, x.max()), scheme) for t in np.linspace(peak / 100, peak, 100))
    assert found <= 1.02 * best


@pytest.mark.parametrize("name", ["uint8", "uint4", "int4"])
def test_the_ends_are_searched_apart_where_that_helps(name: str) -> None:
    # An outlier on each side, not equally far out: no threshold for both is right.
    x = np.append(RNG.normal(2, 1, 5000), [-6.0, 20.0]).astype(np.float32)
    scheme = TensorScheme(dtype(name), symmetric=False)
    observer = MSEObserver()
    observer.update(x)
    best = min(
        error(x, low, high, scheme)
        for low in np.linspace(x.min(), 0, 24)
        for high in np.linspace(x.max() / 20, x.max(), 40)
    )
    assert error(x, *observer.range(scheme), scheme) <= 1.05 * best


def test_channels_are_searched_apart() -> None:
    x = RNG.laplace(size=(2000, 3)).astype(np.float32) * np.float32([1, 100, 0.01])
    scheme = TensorScheme(dtype("int4"), True, PerChannel(1), "mse")
    together = MSEObserver(axis=1)
    together.update(x)
    low, high = together.range(scheme)
    for channel in range(3):
        alone = MSEObserver(axis=1)
        alone.update(x[:, channel : channel + 1])
        assert alone.range(scheme) == (low[channel], high[channel])


def test_fine_grids_are_not_clipped_by_much() -> None:
    x = RNG.standard_normal(5000).astype(np.float32)
    observer = MSEObserver()
    observer.update(x)
    low, high = observer.range(TensorScheme(dtype("int16")))
    assert max(-low, high) > 0.95 * np.abs(x).max()
