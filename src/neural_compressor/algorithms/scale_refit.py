"""The best scales for codes already chosen."""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace, device

from neural_compressor.algorithms.checks import checked_hessian, checked_weight, group_size
from neural_compressor.dtypes import BlockType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerTensor, QuantizedArray
from neural_compressor.schemes.arrays import Array

_RIDGE = 1e-3
_VALUES = 1 << 22


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
    if isinstance(scheme.dtype, BlockType) or isinstance(scheme.granularity, PerTensor):
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
    missing = -columns % size
    if missing:
        x = xp.concat([x, xp.zeros((rows, missing), dtype=x.dtype, device=device(x))], axis=1)
    return xp.sum(xp.reshape(x, (rows, -1, size)), axis=-1)
