"""Sums over vectors, one number an input: what a layer's inputs look like when each is taken alone."""

from __future__ import annotations

from dataclasses import dataclass

from neural_compressor.errors import CalibrationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like


@dataclass(frozen=True)
class Moments:
    """Sums of ``count`` vectors, their magnitudes and their squares, and the largest magnitudes, all (inputs,) float32."""

    count: int
    total: Array
    total_abs: Array
    total_square: Array
    absmax: Array

    @classmethod
    def of(cls, vectors: Array) -> Moments:
        """The moments of ``vectors`` of shape (count, inputs).

        >>> import numpy as np
        >>> Moments.of(np.float32([[1.0, -2.0], [3.0, 0.0]])).total_square.tolist()
        [10.0, 4.0]
        """
        xp = array_namespace(vectors)
        x = as_float32(vectors)
        magnitude = xp.abs(x)
        absmax = xp.max(magnitude, axis=0)
        if not bool(xp.all(xp.isfinite(absmax))):
            raise CalibrationError(
                "NaN or Inf reached calibration; look for an overflow in the model or bad values in the data"
            )
        return cls(x.shape[0], xp.sum(x, axis=0), xp.sum(magnitude, axis=0), xp.sum(x * x, axis=0), absmax)

    def __add__(self, other: Moments) -> Moments:
        xp, own = array_namespace(self.total), self.total
        return Moments(
            self.count + other.count,
            own + like(other.total, own),
            self.total_abs + like(other.total_abs, own),
            self.total_square + like(other.total_square, own),
            xp.maximum(self.absmax, like(other.absmax, own)),
        )
