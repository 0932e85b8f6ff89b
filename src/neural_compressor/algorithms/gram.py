"""Sums of outer products, added up strip by strip."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device, is_torch_array

from neural_compressor.algorithms.both_sides import strips_of
from neural_compressor.schemes.arrays import Array, as_float32

_STRIPS = {"narrowest": 256, "most": 8}


def zero_square(x: Array) -> Array:
    """An (inputs, inputs) float32 zero for vectors ``x`` of shape (count, inputs)."""
    xp = array_namespace(x)
    return xp.zeros((x.shape[1], x.shape[1]), dtype=xp.float32, device=device(x))


def add_upper_gram(upper: Array, x: Array) -> None:
    """Add ``xᵀ x`` to ``upper`` on and above the diagonal; what is below is not to be read.

    Strips do little more than half the work of the whole product, with small temporaries.
    """
    x = x if _multiplies_halves(x) else as_float32(x)
    for strip in strips_of(x.shape[1], **_STRIPS):
        upper[strip, strip.start :] += _product(x[:, strip], x[:, strip.start :])


def mirror_upper(upper: Array) -> None:
    """Copy what is above the diagonal to below it, in place: no second matrix of that size is made."""
    xp = array_namespace(upper)
    for strip in strips_of(upper.shape[0], **_STRIPS):
        corner = upper[strip, strip]
        upper[strip, strip] = xp.triu(corner) + xp.triu(corner, k=1).T
        upper[strip.stop :, strip] = upper[strip, strip.stop :].T


def add_cross_gram(cross: Array, x: Array, reference: Array) -> None:
    """Add ``xᵀ (reference - x)`` to ``cross``.

    Where ``x`` is of 16 bits the differences are multiplied in these, and on a CPU so are the sums of one update rounded:
    unlike those of a Hessian, which must stay positive definite, they stand three digits well.
    """
    x, difference = _compared(x, reference)
    for strip in strips_of(x.shape[1], **_STRIPS):
        cross[strip, :] += _product(x[:, strip], difference)


def add_pull(pull: Array, x: Array, reference: Array, weight: Array) -> None:
    """Add ``weight (reference - x)ᵀ x`` to ``pull``, in the precision of :func:`add_cross_gram`."""
    x, difference = _compared(x, reference)
    xp = array_namespace(x)
    pull += _product(xp.matmul(difference, xp.astype(weight, x.dtype, copy=False).T), x)


def _compared(x: Array, reference: Array) -> tuple[Array, Array]:
    difference = as_float32(reference) - as_float32(x)
    if _multiplies_halves(x) or _is_fast_bf16(x):
        return x, array_namespace(x).astype(difference, x.dtype)
    return as_float32(x), difference


def _multiplies_halves(x: Array) -> bool:
    """Whether the device multiplies these 16-bit numbers exactly and adds in float32, many times faster than float32."""
    return is_torch_array(x) and x.is_cuda and x.element_size() == 2


def _is_fast_bf16(x: Array) -> bool:
    """Whether this is bfloat16 on a CPU that multiplies it faster than float32."""
    if not (is_torch_array(x) and x.device.type == "cpu"):
        return False
    xp: Any = array_namespace(x)
    return bool(x.dtype == xp.bfloat16) and cpu_is_fast_at_bf16(xp)


def cpu_is_fast_at_bf16(torch: Any) -> bool:
    """Whether the CPU has instructions for bfloat16; one without them computes it slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _product(a: Array, b: Array) -> Array:
    xp: Any = array_namespace(a)
    return xp.mm(a.T, b, out_dtype=xp.float32) if _multiplies_halves(a) else xp.matmul(a.T, b)
