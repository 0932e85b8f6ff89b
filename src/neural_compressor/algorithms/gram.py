"""Sums of outer products, added up strip by strip."""

from __future__ import annotations

from typing import Any

from array_api_compat import device, is_torch_array

from neural_compressor.algorithms.matrix_parts import strips_of
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

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


def add_cross_gram(cross: Array, x: Array, reference: Array, fast_bf16: bool = False) -> None:
    """Add ``xᵀ (reference - x)`` to ``cross``.

    Where ``x`` is bfloat16 and that is fast the differences are multiplied in it, and the sums of one update rounded to
    it: unlike those of a Hessian, which must stay positive definite, they stand three digits well.
    """
    x, difference = _compared(x, reference, fast_bf16)
    for strip in strips_of(x.shape[1], **_STRIPS):
        cross[strip, :] += _product(x[:, strip], difference)


def add_pull(pull: Array, x: Array, reference: Array, weight: Array, fast_bf16: bool = False) -> None:
    """Add ``weight (reference - x)ᵀ x`` to ``pull``, in the precision of :func:`add_cross_gram`."""
    x, difference = _compared(x, reference, fast_bf16)
    xp = array_namespace(x)
    for strip in strips_of(weight.shape[0], **_STRIPS):
        rows = xp.astype(like(weight[strip, :], x), x.dtype, copy=False)
        pull[strip, :] += _product(xp.matmul(difference, rows.T), x)


def _compared(x: Array, reference: Array, fast_bf16: bool) -> tuple[Array, Array]:
    difference = as_float32(reference) - as_float32(x)
    if _multiplies_halves(x) or (fast_bf16 and str(x.dtype).endswith("bfloat16")):
        return x, array_namespace(x).astype(difference, x.dtype)
    return as_float32(x), difference


def _multiplies_halves(x: Array) -> bool:
    """Whether the device multiplies these 16-bit numbers exactly and adds in float32, many times faster than float32."""
    return is_torch_array(x) and x.is_cuda and x.element_size() == 2


def _product(a: Array, b: Array) -> Array:
    xp: Any = array_namespace(a)
    return xp.mm(a.T, b, out_dtype=xp.float32) if _multiplies_halves(a) else xp.matmul(a.T, b)
