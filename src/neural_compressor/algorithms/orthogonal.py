"""Orthogonal matrices that mix all of their inputs, whatever their number: for turns that are folded into weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import device

from neural_compressor.algorithms.hadamard import largest_power_of_two, walsh_hadamard
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace


@dataclass(frozen=True)
class Orthogonal:
    """A random orthogonal matrix of ``features``: signs and a Hadamard matrix, times a dense matrix of the odd factor.

    ``apply(x) @ apply(weight).T`` is ``x @ weight.T``. Along the last axis runs of ``features`` are turned alike, such as
    the heads of an attention. With ``keeps_mean`` the vector of ones is turned into itself or its negative, so that the
    matrix commutes with the subtraction of a mean: normalisations that subtract it are left what they are. Values keep
    their type, so that what is given in float64 is turned in float64.

    >>> turn = Orthogonal(6, seed=1)
    >>> x = np.float64([[1, 2, 3, 4, 5, 6]])
    >>> bool(np.isclose(np.linalg.norm(turn.apply(x)), np.linalg.norm(x)))
    True
    >>> kept = Orthogonal(6, seed=1, keeps_mean=True).apply(np.ones(6))
    >>> bool(np.allclose(np.abs(kept), 1) and np.ptp(kept) < 1e-12)
    True
    """

    features: int
    seed: int = 0
    keeps_mean: bool = False

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ConfigError(f"an orthogonal matrix has at least one input, not {self.features}")

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """The matrix ``Q`` for which ``apply(x)`` is ``x @ Q``."""
        found: npt.NDArray[np.float64] = self.apply(np.eye(self.features))
        return found

    def apply(self, x: Array) -> Array:
        """``x`` turned along its last axis, in runs of :attr:`features`."""
        if x.shape[-1] % self.features:
            raise QuantizationError(
                f"an orthogonal matrix of {self.features} inputs cannot turn an array of shape {tuple(x.shape)}"
            )
        xp, shape, inner = array_namespace(x), tuple(x.shape), largest_power_of_two(self.features)
        outer = self.features // inner
        flips = np.random.default_rng(self.seed).integers(0, 2, (1 if self.keeps_mean else outer, inner))
        x = xp.reshape(x, (-1, outer, inner))
        if self.keeps_mean:  # H D H: ones go to the first column, change their sign there or not, and come back
            x = walsh_hadamard(x, inner)
        x = walsh_hadamard(x * xp.asarray(1.0 - 2.0 * flips, dtype=x.dtype, device=device(x)), inner)
        if outer > 1:
            x = xp.asarray(_dense(outer, self.seed, self.keeps_mean), dtype=x.dtype, device=device(x)) @ x
        return xp.reshape(x, shape)


@functools.lru_cache(maxsize=8)
def _dense(n: int, seed: int, keeps_mean: bool) -> npt.NDArray[np.float64]:
    """An orthogonal matrix drawn uniformly; with ``keeps_mean`` among those that leave the vector of ones as it is."""
    if not keeps_mean:
        q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
        return np.asarray(q * np.sign(np.diag(r)), dtype=np.float64)
    # A reflection takes the first unit vector to the direction of ones and back; the other directions are turned.
    step = -np.full(n, n**-0.5)
    step[0] += 1
    reflect = np.eye(n) - 2 * np.outer(step, step) / (step @ step)
    inside = np.eye(n)
    inside[1:, 1:] = _dense(n - 1, seed, keeps_mean=False)
    return np.asarray(reflect @ inside @ reflect, dtype=np.float64)
