"""What an error costs for each scale, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms.losses import block_quadratic, weighted_square
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme

PARTS = [("int4", PerGroup(32), 32), ("int4", PerGroup(40), 40), ("int4", PerGroup(500), 96), ("mxfp4", PER_TENSOR, 32)]


@pytest.mark.parametrize(("name", "part", "size"), PARTS)
def test_groups(name: str, part: Any, size: int, weight: Any, vectors: Any) -> None:
    scheme, hessian = TensorScheme(dtype(name), True, part), vectors.T @ vectors
    square, quadratic = (
        weighted_square(scheme, hessian.diagonal().copy())(weight),
        block_quadratic(scheme, hessian)(weight),
    )
    for group, start in enumerate(range(0, 96, size)):
        own = slice(start, start + size)
        np.testing.assert_allclose(square[:, group], weight[:, own] ** 2 @ hessian.diagonal()[own], rtol=1e-4)
        for row in range(0, 48, 7):
            expected = weight[row, own] @ hessian[own, own] @ weight[row, own]
            np.testing.assert_allclose(quadratic[row, group], expected, rtol=1e-3)


def test_rows_and_the_whole(weight: Any, vectors: Any) -> None:
    hessian = vectors.T @ vectors
    square, quadratic = weight**2 @ hessian.diagonal(), np.einsum("ri,ij,rj->r", weight, hessian, weight)
    for part, reduce in ((PER_CHANNEL, lambda x: x), (PER_TENSOR, np.sum)):
        scheme = TensorScheme(dtype("int4"), True, part)
        np.testing.assert_allclose(
            weighted_square(scheme, hessian.diagonal().copy())(weight), reduce(square), rtol=1e-4
        )
        np.testing.assert_allclose(block_quadratic(scheme, hessian)(weight), reduce(quadratic), rtol=1e-3)
