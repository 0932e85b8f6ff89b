"""Int8 weights that no x86 kernel can overflow on.

Without VNNI a kernel multiplies unsigned activations with signed weights and adds two neighbouring products in 16 bits,
which saturates silently. With activations up to 255 a pair of weights is safe if ``255 * (w1 + w2)`` fits: always where the
two have different signs, and up to ``|w1| + |w2| = 128`` where they have the same. Giving up one bit of every weight
(``reduce_range``) is safe too, and loses far more: here a channel's scale grows only as far as it pays, and what is
still too much of a pair is taken off both of its weights.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import device

from neural_compressor.dtypes import IntType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.granularity import PerChannel, PerTensor
from neural_compressor.schemes.quantize import qparams_of
from neural_compressor.schemes.quantized_array import QuantizedArray
from neural_compressor.schemes.scheme import TensorScheme

LIMIT = 128
"""What the magnitudes of two neighbours of the same sign may sum to: 255 * 128 is the last multiple below 2**15."""
_LARGEST = 127
_RATIOS = np.linspace(1.0, 2.0, 33)
_SMALL = 1 << 17
"""Up to so many weights it takes no time to try all ratios."""
_AT_ONCE = 1 << 20
"""Numbers worked on at a time, which bounds the temporaries."""


def in_pairs(count: int) -> np.ndarray:
    """The partner of each of ``count`` columns that a kernel reads two by two; a last odd one is its own.

    >>> in_pairs(5).tolist()
    [1, 0, 3, 2, 4]
    """
    partners = np.arange(count) ^ 1
    return np.where(partners < count, partners, count - 1)


def quantize_pairs(matrix: Array, scheme: TensorScheme, partners: np.ndarray) -> QuantizedArray:
    """``matrix`` (outputs, inputs) in int8 so that no pair of columns can overflow; ``scheme`` says how many scales.

    ``partners`` holds for each column the one its product is added to in 16 bits, or the column itself.

    >>> row = np.float32([[1.0, 1.0, -1.0, 0.25]])
    >>> scheme = TensorScheme(IntType(8), pair_safe=True)
    >>> quantize_pairs(row, scheme, in_pairs(4)).codes.tolist()
    [[64, 64, -65, 16]]
    """
    _check(scheme)
    matrix = as_float32(matrix)
    least = qparams_of(matrix, scheme).scale
    scale = pair_safe_scales(matrix, least, partners)
    return QuantizedArray(pair_safe_codes(matrix, scale, partners), scale, None, scheme, tuple(matrix.shape))


def pair_safe_scales(matrix: Array, least: Array, partners: np.ndarray) -> Array:
    """The scale of each row, at least ``least`` and at most twice that, with the smallest squared error.

    Where ``least`` has no axis there is one scale for all rows. A row without too large a pair keeps ``least``. Of a small
    matrix every candidate is tried; of a large one the error is estimated, which comes to the same within some percent.
    """
    xp = array_namespace(matrix)
    ratios = xp.asarray(_RATIOS, dtype=xp.float32, device=device(matrix))
    if matrix.shape[0] * matrix.shape[1] > _SMALL:
        return least * ratios[_expected_best(matrix, least, partners, ratios)]
    scales = xp.stack([least * ratio for ratio in ratios])
    errors = xp.stack([_squared_error(matrix, scale, partners) for scale in scales])
    best = xp.argmin(errors, axis=0)
    if least.ndim == 0:
        return scales[best]
    _, owner = _too_much(matrix, least, partners)
    is_over = _sum_by_row(xp.ones(owner.shape, dtype=xp.float32, device=device(matrix)), owner, matrix.shape[0]) > 0
    return xp.where(is_over, xp.take_along_axis(scales, best[None, :], axis=0)[0], least)


def _expected_best(matrix: Array, least: Array, partners: np.ndarray, ratios: Array) -> Array:
    """The place in ``ratios`` with the least error: of rounding, ``n * scale**2 / 12``, and half the square a pair loses."""
    xp = array_namespace(matrix)
    errors = []
    for part in _blocks(matrix):
        start = least if least.ndim == 0 else least[part]
        excess, owner = _too_much(matrix[part], start, partners)
        count = matrix[part].shape[0]
        clipped = [_sum_by_row(xp.clip(excess - (r - 1) * LIMIT, 0, None) ** 2, owner, count) for r in ratios]
        rounding = matrix.shape[1] * ratios[:, None] ** 2 / 12
        errors.append((rounding + xp.stack(clipped) / 2) * xp.broadcast_to(start, (count,))[None, :] ** 2)
    total = xp.concat(errors, axis=1)
    return xp.argmin(xp.sum(total, axis=1) if least.ndim == 0 else total, axis=0)


def _squared_error(matrix: Array, scale: Array, partners: np.ndarray) -> Array:
    """Of each row, or of all where there is one scale."""
    xp = array_namespace(matrix)
    errors = []
    for part in _blocks(matrix):
        step = scale if scale.ndim == 0 else scale[part]
        values = xp.astype(pair_safe_codes(matrix[part], step, partners), xp.float32)
        off = values * (step if step.ndim == 0 else step[:, None]) - matrix[part]
        errors.append(xp.sum(off * off, axis=1))
    total = xp.concat(errors, axis=0)
    return xp.sum(total) if scale.ndim == 0 else total


def pair_safe_codes(matrix: Array, scale: Array, partners: np.ndarray) -> Array:
    """Integers for ``matrix`` in steps of ``scale``; a pair that is too large loses as many steps on either side."""
    xp = array_namespace(matrix)
    partner = xp.asarray(partners, device=device(matrix))
    is_second = partner < xp.arange(matrix.shape[1], device=device(matrix))
    codes = []
    for part in _blocks(matrix):
        step = scale if scale.ndim == 0 else scale[part][:, None]
        exact = xp.clip(as_float32(matrix[part]) / step, -_LARGEST, _LARGEST)
        near = xp.round(exact)
        size = xp.abs(exact)
        # Half of what the pair has too much comes off each; the second takes what the first leaves, so that they sum up.
        first = xp.clip(xp.round((size - xp.take(size, partner, axis=1) + LIMIT) / 2), 1, _LARGEST)
        shared = xp.where(is_second, LIMIT - xp.take(first, partner, axis=1), first)
        codes.append(xp.astype(xp.where(_is_over(near, partner), xp.sign(near) * shared, near), xp.int8))
    return xp.concat(codes, axis=0) if codes else xp.zeros(matrix.shape, dtype=xp.int8)


def is_pair_safe(codes: Array, partners: np.ndarray) -> bool:
    """Whether no two neighbours can overflow: of any int8 ``codes`` (outputs, inputs), however they were chosen."""
    xp = array_namespace(codes)
    partner = xp.asarray(partners, device=device(codes))
    return not any(bool(xp.any(_is_over(xp.astype(codes[part], xp.float32), partner))) for part in _blocks(codes))


def _is_over(codes: Array, partner: Array) -> Array:
    xp = array_namespace(codes)
    other = xp.take(codes, partner, axis=1)
    alone = partner == xp.arange(codes.shape[1], device=device(codes))
    return (codes * other > 0) & (xp.abs(codes) + xp.abs(other) > LIMIT) & ~alone


def _too_much(matrix: Array, scale: Array, partners: np.ndarray) -> tuple[Array, Array]:
    """Of the pairs that are too large at ``scale``: by how many steps, and the row of each."""
    xp = array_namespace(matrix)
    first = np.flatnonzero(partners > np.arange(len(partners)))
    left, right = (xp.asarray(index, device=device(matrix)) for index in (first, partners[first]))
    a, b = xp.take(matrix, left, axis=1), xp.take(matrix, right, axis=1)
    step = scale if scale.ndim == 0 else scale[:, None]
    excess = xp.where(a * b > 0, (xp.abs(a) + xp.abs(b)) / step - LIMIT, xp.zeros_like(a))
    owner, place = xp.nonzero(excess > 0)
    return excess[owner, place], owner


def _sum_by_row(values: Array, owner: Array, rows: int) -> Array:
    xp = array_namespace(values)
    return xp.astype(xp.bincount(owner, values, minlength=rows), xp.float32)  # both libraries have it, the standard not


def _blocks(matrix: Array) -> list[slice]:
    step = max(1, _AT_ONCE // max(1, matrix.shape[1]))
    return [slice(start, start + step) for start in range(0, matrix.shape[0], step)]


def _check(scheme: TensorScheme) -> None:
    kind, granularity = scheme.dtype, scheme.granularity
    fits = kind == IntType(8) and scheme.symmetric and not scheme.reduce_range
    if not fits or not (isinstance(granularity, PerTensor) or granularity == PerChannel(0)):
        raise ConfigError(
            f"weights that are safe in pairs are int8 sym, per_tensor or per_channel (rows), not {scheme.to_dict()}"
        )
