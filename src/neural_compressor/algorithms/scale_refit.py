"""The best scales for codes already chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from array_api_compat import device

from neural_compressor.algorithms.checks import checked_hessian, checked_weight, group_size
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.layer_result import rows_of
from neural_compressor.algorithms.row_blocks import row_blocks
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerTensor, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, in_order
from neural_compressor.schemes.ranges import scale_granularity

_RIDGE = 1e-3
_VALUES = 1 << 22
_GAINS = 0.5, 2.0  # farther off, hardly any code is left to tell from


def refit_scales(array: QuantizedArray, weight: Array, hessian: Array) -> QuantizedArray:
    """``array`` with each row's scales where the quadratic output error is least, its codes and zero points unchanged.

    The values of a row are linear in its scales, so this is a least-squares problem for each row with one unknown a
    group. No row gets worse, and nothing is stored in addition.

    >>> import numpy as np
    >>> from neural_compressor.algorithms.quadratic_loss import quadratic_loss
    >>> from neural_compressor.algorithms.rtn import rtn
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PER_CHANNEL, TensorScheme
    >>> w, hessian = np.float32([[0.3, 0.4, 1.0]]), np.eye(3, dtype=np.float32)
    >>> q = rtn(w, TensorScheme(dtype("int2"), granularity=PER_CHANNEL))
    >>> refit = refit_scales(rtn(w, q.scheme), w, hessian)
    >>> quadratic_loss(w, refit.dequantize(), hessian) <= quadratic_loss(w, q.dequantize(), hessian)
    True
    """
    scheme = array.scheme
    if not _has_free_scales(scheme):
        raise ConfigError(
            f"scales of {scheme.dtype.name} {scheme.granularity.name} are not free numbers, one a row or group; "
            "they cannot be refitted"
        )
    weight = checked_weight(weight, scheme)
    hessian = checked_hessian(hessian, weight)
    xp = array_namespace(weight)
    size = group_size(scheme, weight.shape[1])
    groups = -(-weight.shape[1] // size)
    values = array.dequantize()
    step = max(1, _VALUES // (groups * groups + weight.shape[1]))
    factors = [
        _factors(weight[i : i + step, :], values[i : i + step, :], hessian, size)
        for i in range(0, weight.shape[0], step)
    ]
    scale: Array = array.scale
    return replace(array, scale=scale * xp.reshape(xp.concat(factors), scale.shape))


Q = TypeVar("Q", bound=QuantizedArray | FloatZeroArray)


def keep_gain(array: Q, weight: Array) -> Q:
    """``array`` with scales at which each part that has its own answers to ``weight`` as strongly as that: Σ w q = Σ w².

    Cut-off weights make a layer's outputs smaller in the mean, and the next layers do not forgive that as they do noise.

    >>> import numpy as np
    >>> from neural_compressor.algorithms.rtn import rtn
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup, TensorScheme
    >>> w = np.float32([[0.2, 0.2, 1.0]])
    >>> q = keep_gain(rtn(w, TensorScheme(dtype("int2"), granularity=PerGroup(3))), w)
    >>> round(float((w * q.dequantize()).sum() - (w * w).sum()), 6)
    0.0
    """
    if not _has_free_scales(array.scheme):
        return array
    xp, size = array_namespace(weight), group_size(array.scheme, weight.shape[1])
    parts = []
    for rows in row_blocks(weight):
        w, q = as_float32(weight[rows, :]), rows_of(array, rows).dequantize()
        wanted, found = _grouped(w * w, size), _grouped(w * q, size)
        gain = xp.clip(wanted / xp.where(found > 0, found, xp.ones_like(found)), *_GAINS)
        parts.append(xp.where(found > 0, gain, xp.ones_like(gain)))
    scale: Array = array.scale
    return replace(array, scale=scale * xp.reshape(xp.concat(parts), scale.shape))


def _has_free_scales(scheme: TensorScheme) -> bool:
    """Whether scales are numbers of their own, one a row or group."""
    return scheme.dtype.scale_type is None and not isinstance(scale_granularity(scheme), PerTensor)


def _factors(weight: Array, values: Array, hessian: Array, size: int) -> Array:
    """What to multiply the scales of some rows with, (rows, groups)."""
    xp = array_namespace(weight)
    wanted = _grouped(values * xp.matmul(weight - values, hessian), size)
    products = []
    for start in range(0, weight.shape[1], size):
        part = slice(start, start + size)
        products.append(_grouped(values * xp.matmul(values[:, part], hessian[part, :]), size))
    normal = xp.stack(products, axis=1)
    diagonal = xp.linalg.diagonal(normal)
    # Pulled towards no change where the data says little, above all for a group whose codes are all zero.
    ridge = _RIDGE * xp.mean(diagonal, axis=-1, keepdims=True)
    ridge = xp.where(ridge > 0, ridge, xp.ones_like(ridge))
    eye = xp.eye(normal.shape[-1], dtype=normal.dtype, device=device(normal))
    change = xp.linalg.solve(normal + ridge[..., None] * eye, wanted[..., None])[..., 0]
    gain = 2 * xp.sum(wanted * change, axis=-1) - xp.sum(change * xp.matmul(normal, change[..., None])[..., 0], axis=-1)
    return xp.where(gain[:, None] > 0, 1 + change, xp.ones_like(change))


def _grouped(x: Array, size: int) -> Array:
    """Sums over groups of ``size`` columns, the last of them maybe shorter."""
    xp = array_namespace(x)
    rows, columns = x.shape
    x = in_order(x)
    missing = -columns % size
    if missing:
        x = xp.concat([x, xp.zeros((rows, missing), dtype=x.dtype, device=device(x))], axis=1)
    return xp.sum(xp.reshape(x, (rows, -1, size)), axis=-1)
