"""Tensors rounded to block formats with scales of their own, in one pass: what inputs of layers go through at each call."""

from __future__ import annotations

import math
from typing import Protocol

from array_api_compat import device, is_torch_array

from neural_compressor.errors import ConfigError
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.block import block_scales, tensor_scale_over
from neural_compressor.schemes.grid import nearest
from neural_compressor.schemes.ranges import from_parts, scale_granularity, to_parts
from neural_compressor.schemes.scheme import TensorScheme

_IN_CACHE = 1 << 18  # float32 values whose temporaries stay near a core; beyond, each step waits for memory


class BlockRounding(Protocol):
    """Does what :func:`round_blocks` does, to the bit, on one kind of device."""

    def fits(self, scheme: TensorScheme) -> bool:
        """Whether it knows the format and the rounding."""

    def __call__(self, x: Array, scheme: TensorScheme, tensor_scale: Array | None) -> Array:
        """``x`` rounded."""


FASTER: dict[str, BlockRounding] = {}
"""Kernels by the kind of device, such as ``"cuda"``; a framework registers its own."""


def round_blocks(x: Array, scheme: TensorScheme, tensor_scale: Array | None = None) -> Array:
    """The values of ``x`` (float32) in blocks along its last axis, each with the scale of its largest value.

    ``tensor_scale`` is of a format that has one; None is that of ``x``. A block with NaN or Inf in it is NaN.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> round_blocks(np.float32([[0.3, -2.6, 6.5]]), TensorScheme(dtype("mxfp4"))).tolist()
    [[0.5, -3.0, 6.0]]
    """
    width, count = x.shape[-1], math.prod(x.shape)
    kernel = FASTER.get(x.device.type) if count and is_torch_array(x) else None
    if kernel is not None and kernel.fits(scheme):
        return kernel(x, scheme, tensor_scale)
    # Random rounding goes by the place in the whole.
    if count <= _IN_CACHE or str(device(x)) != "cpu" or scheme.rounding == "dither":
        return round_in_arrays(x, scheme, tensor_scale)
    xp, kind = array_namespace(x), scheme.dtype
    if kind.has_tensor_scale and tensor_scale is None and kind.scale_type is not None:
        tensor_scale = tensor_scale_over(xp.max(xp.abs(x)), kind, kind.scale_type)
    rows, step = xp.reshape(x, (-1, width)), max(1, _IN_CACHE // width)
    out = xp.empty_like(rows)
    for start in range(0, rows.shape[0], step):
        out[start : start + step, :] = round_in_arrays(rows[start : start + step, :], scheme, tensor_scale)
    return xp.reshape(out, x.shape)


def round_in_arrays(x: Array, scheme: TensorScheme, tensor_scale: Array | None = None) -> Array:
    """:func:`round_blocks` by functions of the array library alone, which leave a graph that can be exported."""
    xp = array_namespace(x)
    kind, granularity = scheme.dtype, scale_granularity(scheme)
    if kind.scale_type is None:
        raise ConfigError(f"{kind.name} has no blocks with scales of their own")
    parts = to_parts(x, granularity)
    scale, tensor_scale = block_scales(xp.max(xp.abs(parts), axis=-1), kind, kind.scale_type, tensor_scale)
    step = (scale if tensor_scale is None else scale * tensor_scale)[..., None]
    return from_parts(nearest(parts / step, kind.element_type, scheme.rounding) * step, tuple(x.shape), granularity)
