"""On a CUDA device the same code gives the same results, and 16-bit inputs take the fast way without losing digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import ALGORITHMS, InputStatistics, quadratic_loss
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PerGroup, TensorScheme

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_statistics(name: str, vectors: Any) -> None:
    x = torch.from_numpy(vectors).to(getattr(torch, name))
    reference = (x * 1.1).to(x.dtype)
    seen = InputStatistics()
    seen.update(x.cuda(), reference.cuda())
    exact, other = x.double().numpy(), reference.double().numpy()
    for found, expected in ((seen.hessian, exact.T @ exact), (seen.cross, exact.T @ (other - exact))):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.cpu(), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "symmetric"), [("int4", True), ("uint3", False), ("nf4", True), ("mxfp4", True)])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS.names() if ALGORITHMS[name].scope == "layer"])
def test_algorithms(algorithm: str, name: str, symmetric: bool, weight: Any, vectors: Any) -> None:
    if algorithm == "hqq" and symmetric:
        pytest.skip("hqq needs an asymmetric integer grid")
    scheme, losses = TensorScheme(dtype(name), symmetric, PerGroup(32)), []
    for place in ("cpu", "cuda"):
        seen = InputStatistics()
        seen.update(torch.from_numpy(vectors).to(place))
        result = ALGORITHMS[algorithm](torch.from_numpy(weight).to(place), scheme, seen)
        assert result.array.codes.device.type == place
        losses.append(quadratic_loss(weight, result.dequantize().cpu(), seen.hessian.cpu()))
    # TEQ is trained, and on a coarse grid tiny differences lead to another minimum.
    assert losses[1] == pytest.approx(losses[0], rel=0.15 if algorithm == "teq" else 0.05)
