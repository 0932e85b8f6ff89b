"""How far a layer's outputs move when its weight is replaced, from the second moments of its inputs."""

from __future__ import annotations

from neural_compressor.algorithms.row_blocks import row_blocks
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


def quadratic_loss(weight: Array, approximation: Array, hessian: Array) -> float:
    """``tr(E H Eᵀ)`` with ``E = weight - approximation``: the squared output error summed over the inputs seen.

    >>> import numpy as np
    >>> quadratic_loss(np.float32([[1.0, 2.0]]), np.float32([[1.0, 1.0]]), np.float32([[5.0, 1.0], [1.0, 3.0]]))
    3.0
    """
    weight = as_float32(weight)
    approximation, hessian = like(approximation, weight), like(hessian, weight)
    xp = array_namespace(weight)
    total = 0.0
    for rows in row_blocks(weight):
        error = weight[rows, :] - approximation[rows, :]
        total += float(xp.sum(xp.matmul(error, hessian) * error, dtype=xp.float64))
    return total
