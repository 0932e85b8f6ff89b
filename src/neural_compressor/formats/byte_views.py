"""The same bytes read as numbers of another type, in NumPy and torch alike."""

from __future__ import annotations

from typing import Any

from array_api_compat import is_torch_array

from neural_compressor.schemes.arrays import Array, array_namespace


def contiguous(x: Array) -> Array:
    """``x`` with its values one after the other in memory, as files store them."""
    return x.contiguous() if is_torch_array(x) else array_namespace(x).ascontiguousarray(x)


def reinterpreted(x: Array, dtype: Any) -> Array:
    """``x`` with the bytes of each row of the last axis read as ``dtype``.

    >>> import numpy as np
    >>> reinterpreted(np.uint8([[1, 0, 0, 1]]), np.int16).tolist()
    [[1, 256]]
    """
    xp = array_namespace(x)
    # Flat, because torch calls a single row contiguous whatever its strides are, and then refuses to reinterpret it.
    flat = xp.reshape(contiguous(x), (-1,)).view(dtype)
    return xp.reshape(flat, (*x.shape[:-1], -1))
