"""Arrays of NumPy or torch, worked on as float32 on their own device."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device, is_torch_array

Array = Any
"""A NumPy or torch array; the arithmetic reaches both through the Python array API."""
_NUMPY_CONFORMS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def array_namespace(*arrays: Array) -> Any:
    """The functions of the Python array API for ``arrays``.

    NumPy is taken as it is where it has them all: its wrapper imports parts of NumPy that nothing else needs, which takes
    longer than quantizing a small model.

    >>> array_namespace(np.zeros(3)).__name__
    'numpy'
    """
    if _NUMPY_CONFORMS and arrays and all(isinstance(x, np.ndarray | np.generic) for x in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


def as_float32(x: Array) -> Array:
    """``x`` as float32, cut off from any autograd graph.

    >>> import numpy as np
    >>> as_float32(np.asarray([1, 2])).dtype
    dtype('float32')
    """
    if is_torch_array(x):
        x = x.detach()
    xp = array_namespace(x)
    return xp.astype(x, xp.float32, copy=False)


def like(value: Array, x: Array) -> Array:
    """``value`` (an array of any library, or a number) as a float32 array of the library and on the device of ``x``.

    >>> import numpy as np
    >>> like(0.5, np.zeros(3))
    array(0.5, dtype=float32)
    """
    xp = array_namespace(x)
    if is_torch_array(value):
        value = value.detach()
        if not is_torch_array(x):
            value = value.cpu().numpy()
    return xp.asarray(value, dtype=xp.float32, device=device(x))


def in_order(x: Array) -> Array:
    """``x`` with its rows one after the other in memory.

    However an array lay there, it is then added up in the same order, and gives the same bits.

    >>> in_order(np.zeros((2, 3)).T).flags["C_CONTIGUOUS"]
    True
    """
    return array_namespace(x).reshape(array_namespace(x).reshape(x, (-1,)), x.shape)


def as_bits(x: Array, dtype: Any) -> Array:
    """The memory of ``x`` read as another type of its size: ``x.view(dtype)``, which ``torch.jit.trace`` cannot hold.

    >>> as_bits(np.float32([1.0]), np.int32).tolist() == [127 << 23]
    True
    """
    if is_torch_array(x) and sys.modules["torch"].jit.is_tracing():
        return sys.modules["torch"].view_copy(x, dtype=dtype)
    return x.view(dtype)


def in_runs(x: Array, length: int) -> Array:
    """The last axis cut into runs of ``length``, the last one filled up with zeros.

    >>> in_runs(np.arange(1, 4), 2).tolist()
    [[1, 2], [3, 0]]
    """
    xp = array_namespace(x)
    missing = -x.shape[-1] % length
    if missing:
        x = xp.concat([x, xp.zeros((*x.shape[:-1], missing), dtype=x.dtype, device=device(x))], axis=-1)
    return xp.reshape(x, (*x.shape[:-1], x.shape[-1] // length, length))
