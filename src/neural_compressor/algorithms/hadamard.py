"""Rotations of a layer's input side by Hadamard matrices, which spread outliers over many weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neural_compressor.algorithms.matrix_parts import transform_both_axes
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


def largest_power_of_two(n: int) -> int:
    """The largest power of two that divides ``n``.

    >>> largest_power_of_two(576)
    64
    """
    return n & -n


def hadamard_matrix(n: int) -> npt.NDArray[np.float32]:
    """The orthonormal Hadamard matrix of Sylvester, in blocks along the diagonal where ``n`` is no power of two.

    Block sizes are the largest power of two that divides ``n``.

    >>> (hadamard_matrix(2) * 2**0.5).round(6).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    >>> hadamard_matrix(6).shape
    (6, 6)
    """
    matrix: npt.NDArray[np.float32] = Rotation(n).apply(np.eye(n, dtype=np.float32))
    return matrix


@dataclass(frozen=True)
class Rotation:
    """An orthonormal transform of ``features`` inputs: random signs, then Hadamard matrices of ``block`` inputs each.

    ``rotation.apply(x) @ rotation.apply(weight).T`` is ``x @ weight.T``: the same call turns the inputs of a layer and
    the rows of its weight. Without a ``seed`` no sign is turned; without a ``block`` it is as large as it can be.

    >>> turn = Rotation(6, seed=1)
    >>> x = np.float32([[1, 2, 3, 4, 5, 6]])
    >>> np.allclose(turn.undo(turn.apply(x)), x, atol=1e-5)
    True
    """

    features: int
    block: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ConfigError(f"a rotation turns at least one input, not {self.features}")
        block = self.block_size
        if block < 1 or block & (block - 1) or self.features % block:
            raise ConfigError(
                f"a Hadamard block is a power of two that divides the {self.features} inputs (at most "
                f"{largest_power_of_two(self.features)}), not {block}"
            )

    @property
    def block_size(self) -> int:
        """How many inputs are mixed with one another."""
        return largest_power_of_two(self.features) if self.block is None else self.block

    def apply(self, x: Array) -> Array:
        """``x`` turned along its last axis."""
        x = self._checked(x)
        return walsh_hadamard(x if self.seed is None else x * self._signs(x), self.block_size)

    def undo(self, x: Array) -> Array:
        """What :meth:`apply` was made from."""
        x = walsh_hadamard(self._checked(x), self.block_size)
        return x if self.seed is None else x * self._signs(x)

    def apply_to_hessian(self, hessian: Array, *, overwrite: bool = False) -> Array:
        """The second moments of the turned inputs; with ``overwrite`` in the place of ``hessian``."""
        square = hessian if overwrite else array_namespace(hessian).asarray(hessian, copy=True)
        transform_both_axes(square, self.apply)
        return square

    def _checked(self, x: Array) -> Array:
        if x.shape[-1] != self.features:
            raise QuantizationError(
                f"a rotation of {self.features} inputs cannot turn an array of shape {tuple(x.shape)}"
            )
        return as_float32(x)

    def _signs(self, x: Array) -> Array:
        # Drawn by NumPy whatever the library, so that a seed means the same everywhere.
        flips = np.random.default_rng(self.seed).integers(0, 2, self.features)
        return like(1.0 - 2.0 * flips, x)


def walsh_hadamard(x: Array, block: int) -> Array:
    """Multiply runs of ``block`` values by the Hadamard matrix, by butterflies: n log n operations, no matrix."""
    xp = array_namespace(x)
    shape, half = tuple(x.shape), 1
    while half < block:
        pairs = xp.reshape(x, (-1, 2, half))
        first, second = pairs[:, 0, :], pairs[:, 1, :]
        x = xp.stack([first + second, first - second], axis=1)
        half *= 2
    return xp.reshape(x, shape) * block**-0.5


def rotated(weight: Array, rotation: Rotation | None) -> Array:
    """``weight`` (outputs, inputs) for rotated inputs, or as it is."""
    return weight if rotation is None else rotation.apply(weight)
