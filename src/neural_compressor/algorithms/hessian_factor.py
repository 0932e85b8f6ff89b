"""The triangular factor of the inverse Hessian, from which error compensation reads its coefficients."""

from __future__ import annotations

import logging

from array_api_compat import array_namespace, device

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes.arrays import Array

_LOG = logging.getLogger(__name__)
_SMALLEST_DAMPING = 1e-4
_MOST_STEPS = 12
_LEAF = 64


def inverse_factor(hessian: Array, damping: float = 0.01) -> Array:
    """Upper triangular ``U`` with ``(H + d I)⁻¹ = Uᵀ U / mean(diag H)``, where ``d`` is ``damping`` of the mean diagonal.

    The Hessian is taken relative to its mean diagonal, so that neither the number of tokens nor the size of the inputs
    matters. An input that was always zero gets the mean diagonal: it has nothing to do with the others. Where too few
    samples leave the matrix without a factor the damping grows ten-fold, with a warning, until it has one.

    >>> import numpy as np
    >>> u = inverse_factor(np.float32([[4.0, 2.0], [2.0, 4.0]]), damping=0.0)
    >>> np.allclose(u.T @ u, np.linalg.inv([[1.0, 0.5], [0.5, 1.0]]))
    True
    """
    if not 0 <= damping < float("inf"):
        raise ConfigError(f"damping is a fraction of the mean diagonal, such as 0.01, not {damping}")
    xp = array_namespace(hessian)
    diagonal = xp.linalg.diagonal(hessian)
    mean = float(xp.mean(diagonal))
    if bool(xp.any(diagonal < 0)):
        raise QuantizationError("the diagonal of a Hessian is a sum of squares, and this one has negative entries")
    if mean == 0:
        return xp.eye(hessian.shape[0], dtype=hessian.dtype, device=device(hessian))
    dead = xp.astype(diagonal == 0, hessian.dtype)
    grown = damping
    for _ in range(_MOST_STEPS):
        factor = _factor(hessian, mean, dead + grown)
        if factor is not None:
            if grown > damping:
                _LOG.warning(
                    "the Hessian of %d inputs has no Cholesky factor at damping %g; it was grown to %g. More "
                    "calibration samples would help",
                    hessian.shape[0],
                    damping,
                    grown,
                )
            return factor
        grown = max(grown * 10, _SMALLEST_DAMPING)
    raise QuantizationError(
        f"the Hessian has no Cholesky factor even at damping {grown:g}: it is not a sum of x xᵀ; was it transformed?"
    )


def _factor(hessian: Array, mean: float, added: Array) -> Array | None:
    """``U`` of ``H / mean + diag(added)``, or None where that is not positive definite.

    With the rows and columns reversed, the Cholesky factor L of H turns into the upper factor of H itself, and its
    inverse is U: one Cholesky and one triangular inverse do what Cholesky, inverse and a second Cholesky would.
    """
    xp = array_namespace(hessian)
    try:
        lower = xp.linalg.cholesky(_reversed(hessian, mean, added))
        _invert_lower(lower)
    except xp.linalg.LinAlgError:
        return None
    # Of NaN and Inf the largest or the smallest is one; looking at each value would take a matrix of answers.
    finite = bool(xp.isfinite(xp.max(lower))) and bool(xp.isfinite(xp.min(lower)))
    return xp.flip(lower) if finite else None


def _reversed(hessian: Array, mean: float, added: Array) -> Array:
    xp = array_namespace(hessian)
    damped = xp.flip(hessian) / mean
    places = xp.arange(hessian.shape[0], device=device(hessian))
    damped[places, places] += xp.flip(added)
    return damped


def _invert_lower(lower: Array) -> None:
    """Turn a lower triangular matrix into its inverse, by halves: products, which every library does at full speed."""
    xp = array_namespace(lower)
    size = lower.shape[0]
    if size <= _LEAF:
        lower[...] = xp.tril(xp.linalg.inv(lower))
        return
    half = size // 2
    first, below, second = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    _invert_lower(first)
    _invert_lower(second)
    below[...] = -xp.matmul(second, xp.matmul(below, first))
