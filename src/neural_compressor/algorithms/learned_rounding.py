"""Learned rounding: each weight of a layer goes up or down so that what the layer gives changes least.

The squared error of a layer's outputs is quadratic in its weight, so that second moments of the inputs say all about it
(Nagel et al. 2020, equation 13). Codes move one after the other, each to where the error is least while all others stay: no
step makes it worse, and rounding to nearest is where they start. Signed gradient steps, which training over a whole block
takes, gained half as much (in dB, ResNet-20 with weights of 3 and 4 bits); from where this ends they gain more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import device

from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import PER_TENSOR, QuantizedArray
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.pair_safe import LIMIT
from neural_compressor.schemes.quantize import quantize_with

_DAMPING = 0.01
"""A share of the mean square of the inputs that every weight is held to its float value with."""
_COLUMNS = 64
"""So many columns are gone through before the others hear of it, in one product."""


class InputMoments:
    """Sums over the inputs of a layer whose weight is (groups, outputs, inputs of a group).

    >>> seen = InputMoments(np.float32([[[1.0, 1.0]]]))
    >>> seen.update(np.float32([[[1.0, 0.0], [3.0, 2.0]]]), np.float32([[[1.0, 0.0], [3.0, 3.0]]]))
    >>> error = seen.error(centred=False, damping=0.0)
    >>> error.hessian.tolist(), error.pull.tolist()
    ([[[5.0, 3.0], [3.0, 2.0]]], [[[1.5, 1.0]]])
    """

    def __init__(self, weight: Array) -> None:
        self.weight = as_float32(weight)
        xp, (groups, outputs, inputs) = array_namespace(self.weight), self.weight.shape
        self._square, self._pull, self._sum, self._behind = (
            xp.zeros(shape, dtype=xp.float32, device=device(self.weight))
            for shape in ((groups, inputs, inputs), (groups, outputs, inputs), (groups, 1, inputs), (groups, 1, inputs))
        )
        self.count = 0

    def update(self, x: Array, reference: Array) -> None:
        """Take inputs (groups, vectors, inputs) into account; ``reference`` is what the float model has in their place."""
        xp = array_namespace(x)
        if x.shape != reference.shape:
            raise CalibrationError(
                f"inputs and those of the float model must be of the same places: {tuple(x.shape)} is not "
                f"{tuple(reference.shape)}"
            )
        behind = reference - x
        self._sum += xp.sum(x, axis=1, keepdims=True)
        self._behind += xp.sum(behind, axis=1, keepdims=True)
        self._square += xp.matmul(_t(x), x)
        if self.weight.shape[1] < self.weight.shape[2]:
            self._pull += xp.matmul(xp.matmul(self.weight, _t(behind)), x)
        else:
            self._pull += xp.matmul(self.weight, xp.matmul(_t(behind), x))
        self.count += x.shape[1]

    def error(self, centred: bool, damping: float = _DAMPING) -> OutputError:
        """The error of outputs by weight; ``centred``: of what a bias does not make up for.

        The fewer vectors there were for an input, the more its weights are held where they are.
        """
        xp = array_namespace(self._square)
        if not self.count:
            raise CalibrationError("no data reached this layer; calibrate with data that runs through it")
        hessian, pull, mean, behind = (s / self.count for s in (self._square, self._pull, self._sum, self._behind))
        if not bool(xp.all(xp.isfinite(hessian)) & xp.all(xp.isfinite(pull))):
            raise CalibrationError("NaN or Inf reached this layer; look for an overflow in the model or in the data")
        if centred:
            hessian = hessian - xp.matmul(_t(mean), mean)
            pull = pull - xp.matmul(xp.matmul(self.weight, _t(behind)), mean)
        if damping:
            identity = xp.eye(hessian.shape[1], dtype=xp.float32, device=device(hessian))[None, :, :]
            size = xp.mean(xp.sum(hessian * identity, axis=2), axis=1)
            hessian = hessian + (damping + hessian.shape[1] / self.count) * size[:, None, None] * identity
        return OutputError(self.weight, hessian, pull, mean)


@dataclass(frozen=True)
class OutputError:
    """The mean squared error of a layer's outputs as a function of its weight.

    With ``x`` for inputs and ``r`` for those of the float model, rows ``q`` in the place of ``w`` cost the mean of
    ``(q x - w r)²``: but for a constant ``(q - w) H (q - w)ᵀ - 2 (q - w) p``, with ``H`` the mean of ``x xᵀ``
    (``hessian``) and ``p`` that of ``(w (r - x)) x`` (``pull``).
    """

    weight: Array
    hessian: Array
    pull: Array
    mean: Array

    def __call__(self, values: Array) -> Array:
        """What each row of a weight (outputs of all groups, inputs) costs, but for a constant."""
        xp = array_namespace(values)
        off = xp.reshape(values, self.weight.shape) - self.weight
        cost = (xp.matmul(off, self.hessian) - 2 * self.pull) * off
        return xp.reshape(xp.sum(cost, axis=2, dtype=xp.float64), (-1,))

    def bias_shift(self, values: Array) -> Array:
        """What a bias takes up: the mean of ``w x - q x``, an output each.

        What the mean of ``x`` itself is off by is left alone: clipping takes a lot off few values, and a shift of all others
        for their sake costs more than it gives.
        """
        xp = array_namespace(values)
        off = self.weight - xp.reshape(values, self.weight.shape)
        return xp.reshape(xp.matmul(off, _t(self.mean)), (-1,))


def learned_rounding(
    error: OutputError, start: QuantizedArray, *, sweeps: int = 4, partners: np.ndarray | None = None
) -> QuantizedArray:
    """``start``, a weight (outputs of all groups, inputs) in integers, with codes that cost less.

    Each is one of the two next to the float weight, or the one that ``start`` has. Scales stay, unless others, searched for
    the weight, cost less from the beginning. ``partners`` are the columns whose products a kernel adds in 16 bits to those
    of each: then scales stay, and so does every pair within what it can add (``schemes/pair_safe.py``).

    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import TensorScheme, quantize
    >>> w, scheme = np.float32([[0.4, 0.4, 7.0]]), TensorScheme(dtype("int4"))
    >>> seen = InputMoments(w[None])
    >>> seen.update(*[np.float32([[[1.0, 1.0, 0.0]]])] * 2)
    >>> learned_rounding(seen.error(centred=False), quantize(w, scheme)).codes.tolist()
    [[1, 0, 7]]
    """
    start = start if partners is not None else _with_searched_scales(error, start)
    codes = _Codes(error, start, partners)
    for _ in range(sweeps):
        if not codes.sweep():
            break
    return codes.result()


def _with_searched_scales(error: OutputError, start: QuantizedArray) -> QuantizedArray:
    """``start``, or the weight rounded to nearest with scales at which its squared error is least, as either costs less."""
    xp = array_namespace(error.weight)
    weight = xp.reshape(error.weight, start.shape)
    diagonal = xp.sum(error.hessian * xp.eye(error.hessian.shape[1], dtype=xp.float32, device=device(weight)), axis=2)
    # A search has one importance for each column, and groups have their own: those of all in the mean.
    importance = xp.clip(xp.mean(diagonal, axis=0), 1e-12, None)
    qparams = weight_qparams(weight, start.scheme, search="mse", importance=importance, full_range=False)
    other = quantize_with(weight, start.scheme, qparams)
    before, after = error(start.dequantize()), error(other.dequantize())
    if start.scheme.granularity == PER_TENSOR:
        return other if float(xp.sum(after)) < float(xp.sum(before)) else start
    better = after < before

    def chosen(new: Array | None, old: Array | None) -> Array | None:
        if new is None or old is None:
            return old
        return xp.where(xp.reshape(better, (-1, *(1 for _ in old.shape[1:]))), new, old)

    codes, scale, zero = (
        chosen(getattr(other, part), getattr(start, part)) for part in ("codes", "scale", "zero_point")
    )
    return replace(start, codes=codes, scale=scale, zero_point=zero)


class _Codes:
    """The codes of a weight on their way, as (groups, outputs, inputs)."""

    def __init__(self, error: OutputError, start: QuantizedArray, partners: np.ndarray | None) -> None:
        self.error, self.start, self.partners = error, start, partners
        shape, xp = error.weight.shape, array_namespace(error.weight)
        scale, zero = start.qparams.scale, start.qparams.zero_point

        def by_row(values: Array) -> Array:
            rows = xp.reshape(as_float32(values), (-1, 1))
            return xp.reshape(xp.broadcast_to(rows, (shape[0] * shape[1], 1)), (*shape[:2], 1))

        self.scale = by_row(scale)
        self.zero = xp.zeros_like(self.scale) if zero is None else by_row(zero)
        self.codes = xp.reshape(xp.astype(start.codes, xp.float32, copy=True), shape)
        exact = xp.clip(error.weight / self.scale + self.zero, *map(float, integer_limits(start.scheme)))
        self.low = xp.minimum(xp.floor(exact), self.codes)
        self.high = xp.maximum(xp.ceil(exact), self.codes)

    def sweep(self) -> bool:
        """Go through all columns; whether any code moved."""
        xp, moved = array_namespace(self.codes), False
        hessian, scale = self.error.hessian, self.scale[:, :, 0]
        for begin in range(0, self.codes.shape[2], _COLUMNS):
            block = slice(begin, begin + _COLUMNS)
            off = (self.codes - self.zero) * self.scale - self.error.weight
            slope = xp.matmul(off, hessian[:, :, block]) - self.error.pull[:, :, block]
            inside = hessian[:, block, block]
            for place in range(slope.shape[2]):
                old = self.codes[:, :, begin + place]
                curvature = xp.clip(inside[:, place, place], 1e-30, None)[:, None]
                best = xp.round(old - slope[:, :, place] / (curvature * scale))
                low, high = self._limits(begin + place)
                step = xp.minimum(xp.maximum(best, low), high) - old
                if bool(xp.any(step != 0)):
                    moved = True
                    self.codes[:, :, begin + place] = old + step
                    slope = slope + (step * scale)[:, :, None] * inside[:, place, None, :]
        return moved

    def _limits(self, column: int) -> tuple[Array, Array]:
        low, high = self.low[:, :, column], self.high[:, :, column]
        partner = column if self.partners is None else int(self.partners[column])
        if partner == column:
            return low, high
        xp, other = array_namespace(low), self.codes[:, :, partner]
        high = xp.where(other > 0, xp.minimum(high, LIMIT - other), high)
        return xp.where(other < 0, xp.maximum(low, -LIMIT - other), low), high

    def result(self) -> QuantizedArray:
        xp = array_namespace(self.codes)
        codes = xp.astype(xp.reshape(self.codes, self.start.shape), self.start.codes.dtype)
        return replace(self.start, codes=codes)


def _t(x: Array) -> Array:
    return array_namespace(x).matrix_transpose(x)
