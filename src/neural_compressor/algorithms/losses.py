"""Losses of replacing a weight: the error of its outputs, of a whole layer and of each group that has its own scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from array_api_compat import device

from neural_compressor.algorithms.checks import group_size
from neural_compressor.algorithms.matrix_parts import row_blocks
from neural_compressor.schemes import PER_TENSOR, Granularity, PerGroup, TensorScheme, value_range
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, in_runs, like
from neural_compressor.schemes.ranges import scale_granularity, to_parts


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


GroupLoss = Callable[[Array], Array]
"""From the error of a weight (rows, inputs) to its cost in the shape of the scales."""


def weighted_square(scheme: TensorScheme, importance: Array) -> GroupLoss:
    """The squared error of each weight times the ``importance`` of its input, summed over what shares a scale.

    >>> from neural_compressor.dtypes import dtype
    >>> loss = weighted_square(TensorScheme(dtype("int4"), granularity=PerGroup(2)), np.float32([1.0, 2.0, 3.0]))
    >>> loss(np.float32([[1.0, 1.0, 2.0]])).tolist()
    [[3.0, 12.0]]
    """
    xp = array_namespace(importance)
    granularity = scale_granularity(scheme)
    if not isinstance(granularity, PerGroup):
        return _by_scale(granularity, lambda error: xp.matmul(error * error, importance))
    weights = in_runs(importance, group_size(scheme, importance.shape[0]))

    def grouped(error: Array) -> Array:
        parts = to_parts(error, granularity)
        return xp.sum(parts * parts * weights, axis=-1)

    return grouped


def fourth_power(scheme: TensorScheme, weight: Array) -> GroupLoss:
    """The fourth power of the error of ``weight`` relative to its largest value, summed over what shares a scale.

    >>> from neural_compressor.dtypes import dtype
    >>> loss = fourth_power(TensorScheme(dtype("int4"), granularity=PerGroup(2)), np.float32([[1.0, 1.0, 2.0]]))
    >>> loss(np.float32([[2.0, 2.0, 4.0]])).tolist()
    [[2.0, 16.0]]
    """
    xp = array_namespace(weight)
    low, high = value_range(weight, PER_TENSOR)
    largest = max(-float(low), float(high)) or 1.0
    squares = weighted_square(scheme, xp.ones(weight.shape[1], dtype=xp.float32, device=device(weight)))

    def powers(error: Array) -> Array:
        relative = error / largest
        return squares(relative * relative)

    return powers


def block_quadratic(scheme: TensorScheme, hessian: Array) -> GroupLoss:
    """The quadratic output error of each group on its own: with its diagonal block of the Hessian.

    >>> from neural_compressor.dtypes import dtype
    >>> hessian = np.float32([[1.0, 0.5, 9.0], [0.5, 1.0, 9.0], [9.0, 9.0, 2.0]])
    >>> loss = block_quadratic(TensorScheme(dtype("int4"), granularity=PerGroup(2)), hessian)
    >>> loss(np.float32([[1.0, 1.0, 2.0]])).tolist()
    [[3.0, 8.0]]
    """
    xp = array_namespace(hessian)
    granularity = scale_granularity(scheme)
    if not isinstance(granularity, PerGroup):
        return _by_scale(granularity, lambda error: xp.sum(xp.matmul(error, hessian) * error, axis=-1))
    blocks = _diagonal_blocks(hessian, group_size(scheme, hessian.shape[0]))

    def grouped(error: Array) -> Array:
        parts = xp.permute_dims(to_parts(error, granularity), (1, 0, 2))
        return xp.sum(xp.matmul(parts, blocks) * parts, axis=-1).T

    return grouped


def _by_scale(granularity: Granularity, by_row: GroupLoss) -> GroupLoss:
    """The cost of each row, which has a scale of its own, or of all rows where they have one together."""
    if granularity.name != "per_tensor":
        return by_row
    return lambda error: array_namespace(error).sum(by_row(error))


def _diagonal_blocks(hessian: Array, size: int) -> Array:
    """(groups, size, size), with nothing where a last short group has no weights."""
    xp = array_namespace(hessian)
    inputs = hessian.shape[0]
    places = np.arange(-(-inputs // size) * size).reshape(-1, size)
    within = np.minimum(places, inputs - 1)
    there = like((places < inputs).astype(np.float32), hessian)
    index = xp.asarray(within, device=device(hessian))
    return hessian[index[:, :, None], index[:, None, :]] * there[:, :, None] * there[:, None, :]
