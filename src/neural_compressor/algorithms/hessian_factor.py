"""The triangular factor of the inverse Hessian, from which error compensation reads its coefficients."""

from __future__ import annotations

import logging

from array_api_compat import device

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace

_LOG = logging.getLogger(__name__)
_SMALLEST_DAMPING = 1e-4
_MOST_STEPS = 12
_NARROWEST, _WIDEST = 128, 512


def inverse_factor(hessian: Array, damping: float = 0.01, *, overwrite: bool = False) -> Array:
    """Upper triangular ``U`` with ``(H + d I)⁻¹ = Uᵀ U / mean(diag H)``, where ``d`` is ``damping`` of the mean diagonal.

    The Hessian is taken relative to its mean diagonal, so that neither the number of tokens nor the size of the inputs
    matters. An input that was always zero gets the mean diagonal: it has nothing to do with the others. Where too few
    samples leave the matrix without a factor the damping grows ten-fold, with a warning, until it has one.

    With ``overwrite`` the factor takes the place of ``hessian``, and no other matrix of that size is needed.

    >>> import numpy as np
    >>> u = inverse_factor(np.float32([[4.0, 2.0], [2.0, 4.0]]), damping=0.0)
    >>> np.allclose(u.T @ u, np.linalg.inv([[1.0, 0.5], [0.5, 1.0]]))
    True
    """
    if not 0 <= damping < float("inf"):
        raise ConfigError(f"damping is a fraction of the mean diagonal, such as 0.01, not {damping}")
    xp = array_namespace(hessian)
    diagonal = xp.asarray(xp.linalg.diagonal(hessian), copy=True)
    mean = float(xp.mean(diagonal))
    if bool(xp.any(diagonal < 0)):
        raise QuantizationError("the diagonal of a Hessian is a sum of squares, and this one has negative entries")
    square = hessian if overwrite else xp.asarray(hessian, copy=True)
    places = xp.arange(square.shape[0], device=device(square))
    if mean == 0:
        square[...] = 0.0
        square[places, places] = 1.0
        return square
    square /= mean
    dead = xp.astype(diagonal == 0, square.dtype)
    grown = damping
    for _ in range(_MOST_STEPS):
        square[places, places] = diagonal / mean + (dead + grown)
        if _turned_into_factor(square):
            if grown > damping:
                _LOG.warning(
                    "the Hessian of %d inputs has no Cholesky factor at damping %g; it was grown to %g. More "
                    "calibration samples would help",
                    square.shape[0],
                    damping,
                    grown,
                )
            return square
        grown = max(grown * 10, _SMALLEST_DAMPING)
    raise QuantizationError(
        f"the Hessian has no Cholesky factor even at damping {grown:g}: it is not a sum of x xᵀ; was it transformed?"
    )


def _turned_into_factor(square: Array) -> bool:
    """Put the factor ``U`` of the inverse in the place of ``square``; where it has none, leave ``square`` as it was.

    With ``H = R Rᵀ`` and R upper triangular, ``U`` is the inverse of R: what a Cholesky factor of H from the last row
    to the first gives, where Cholesky, inverse and a second Cholesky would be needed from the first to the last. All is
    done above the diagonal, so that what is below can bring the matrix back.
    """
    xp = array_namespace(square)
    size = square.shape[0]
    # Wide enough to keep a device busy, and narrow enough for the corners to take little memory.
    step = min(max(_NARROWEST, size // 16), _WIDEST)
    blocks = [slice(start, min(start + step, size)) for start in range(0, size, step)]
    corners = [xp.asarray(square[block, block], copy=True) for block in blocks]
    try:
        for i in reversed(range(len(blocks))):
            _factor_block(square, blocks[i], blocks[i + 1 :])
        # Of NaN and Inf the largest or the smallest is one; looking at each value would take a matrix of answers.
        there = bool(xp.isfinite(xp.max(square))) and bool(xp.isfinite(xp.min(square)))
    except xp.linalg.LinAlgError:
        there = False
    for block, corner in zip(blocks, corners, strict=True):
        if there:
            square[block.stop :, block] = 0.0
        else:
            square[block, block] = corner
            square[block, block.stop :] = square[block.stop :, block].T
    return there


def _factor_block(square: Array, block: slice, ahead: list[slice]) -> None:
    """The columns of R above a block, and the rows of ``U`` in it, once the rows of those ``ahead`` hold ``U``.

    Those rows of R are wanted by none of the blocks before, so the inverse can follow the factor through the matrix.
    """
    xp = array_namespace(square)
    own = square[block, block.stop :]
    corner = square[block, block] - xp.matmul(own, own.T)
    inverse = xp.triu(xp.linalg.inv(xp.flip(xp.linalg.cholesky(xp.flip(corner)))))
    before = square[: block.start, block]
    before -= xp.matmul(square[: block.start, block.stop :], own.T)
    before[...] = xp.matmul(before, inverse.T)
    square[block, block] = inverse
    for columns in reversed(ahead):
        # From the last on, since each needs these rows of R only as far as itself.
        between = slice(block.stop, columns.stop)
        square[block, columns] = xp.matmul(-inverse, xp.matmul(square[block, between], square[between, columns]))
