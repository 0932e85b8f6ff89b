"""The same bytes read as numbers of another type, in NumPy and torch alike."""

from __future__ import annotations

from typing import Any

from array_api_compat import is_torch_array

from neural_compressor.errors import MissingDependencyError
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


def as_float8(codes: Array, name: str = "float8_e4m3fn") -> Array:
    """Bytes read as 8-bit floats: a type of torch, or of the package ``ml_dtypes`` for NumPy, which has none itself."""
    return codes.view(_float8(codes, name))


def float8_codes(array: Array) -> Array:
    """The bytes of 8-bit floats, uint8."""
    return contiguous(array).view(array_namespace(array).uint8)


def dtype_name(array: Array) -> str:
    """The name of an array's type, without that of its library.

    >>> import numpy as np
    >>> dtype_name(np.float32([1.0]))
    'float32'
    """
    return str(array.dtype).rpartition(".")[2]


def _float8(array: Array, name: str) -> Any:
    if is_torch_array(array):
        import torch

        return getattr(torch, name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(
            f"NumPy has no {name}: use torch tensors, or install its type: pip install ml_dtypes"
        ) from error
    return getattr(ml_dtypes, name)
