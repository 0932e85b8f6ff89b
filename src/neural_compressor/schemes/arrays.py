"""What the arithmetic takes in: any NumPy or torch array, worked on as float32 on its own device."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device, is_torch_array

Array = Any
"""A NumPy or torch array; the arithmetic reaches both through the Python array API."""


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
