"""Statistics of the inputs of a layer, kept in memory that does not grow with their number."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from array_api_compat import device, is_torch_array

from neural_compressor.algorithms.gram import add_cross_gram, add_pull, add_upper_gram, mirror_upper, zero_square
from neural_compressor.algorithms.upstream import upstream_pull
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

logger = logging.getLogger("neural_compressor")

_ENOUGH = 4
"""Vectors seen for every so many inputs of a layer, below which GPTQ was seen to do worse than rounding to nearest."""
_TAKEN = "the Hessian of these statistics was taken out of them; make new ones"


@dataclass(frozen=True)
class Moments:
    """Sums of the magnitudes and squares of ``count`` vectors, and the largest magnitudes, all (inputs,) float32."""

    count: int
    total_abs: Array
    total_square: Array
    absmax: Array

    @classmethod
    def of(cls, vectors: Array) -> Moments:
        """The moments of ``vectors`` of shape (count, inputs).

        >>> import numpy as np
        >>> Moments.of(np.float32([[1.0, -2.0], [3.0, 0.0]])).total_square.tolist()
        [10.0, 4.0]
        """
        xp = array_namespace(vectors)
        x = as_float32(vectors)
        magnitude = xp.abs(x)
        absmax = xp.max(magnitude, axis=0)
        if not bool(xp.all(xp.isfinite(absmax))):
            raise CalibrationError(
                "NaN or Inf reached calibration; look for an overflow in the model or bad values in the data"
            )
        return cls(x.shape[0], xp.sum(magnitude, axis=0), xp.sum(x * x, axis=0), absmax)

    def __add__(self, other: Moments) -> Moments:
        xp, own = array_namespace(self.total_abs), self.total_abs
        return Moments(
            self.count + other.count,
            own + like(other.total_abs, own),
            self.total_square + like(other.total_square, own),
            xp.maximum(self.absmax, like(other.absmax, own)),
        )


class InputStatistics:
    """Second moments of the vectors that reach a layer, and what the algorithms derive from them.

    ``update(x)`` takes any number of vectors along the last axis of ``x``. ``update(x, reference)`` also takes what the
    float model feeds the layer at the same places: ``x`` is then what the layer sees behind layers already quantized, and
    :meth:`pull` says what the difference does to outputs. For that an (inputs, inputs) matrix is kept; where it is known
    that only the outputs of a ``weight`` with fewer rows will be asked for, one of its size. ``fast_bf16`` says that the
    device multiplies bfloat16 faster than float32: what is compared in it is then multiplied in it.

    >>> import numpy as np
    >>> seen = InputStatistics()
    >>> seen.update(np.float32([[1.0, -2.0], [3.0, 0.0]]))
    >>> seen.hessian.tolist(), seen.mean_abs.tolist(), seen.count
    ([[10.0, -2.0], [-2.0, 4.0]], [2.0, 1.0], 2)
    """

    def __init__(self, *, weight: Array | None = None, fast_bf16: bool = False) -> None:
        self._fast_bf16 = fast_bf16
        self._narrow = weight is not None and weight.shape[0] < weight.shape[1]
        self._weight = weight if self._narrow else None
        self._moments: Moments | None = None
        self._upper: Array | None = None
        self._cross: Array | None = None

    def update(self, x: Array, reference: Array | None = None) -> None:
        """Take the vectors along the last axis of ``x`` into account."""
        x = _vectors(x)
        if reference is not None:
            reference = self._checked_reference(_vectors(reference), x)
        if x.shape[0] == 0:
            return
        if self._moments is not None:
            _same_width(self._moments, x.shape[1])
            if self._upper is None:
                raise CalibrationError(_TAKEN)
            if (self._cross is None) != (reference is None):
                raise CalibrationError("every update must have a reference, or none has: the sums would not match")
        moments = Moments.of(x)
        self._moments = moments if self._moments is None else self._moments + moments
        self._upper = zero_square(x) if self._upper is None else self._upper
        add_upper_gram(self._upper, x)
        if reference is not None:
            self._add_difference(x, reference)

    def _add_difference(self, x: Array, reference: Array) -> None:
        if self._weight is None:
            self._cross = zero_square(x) if self._cross is None else self._cross
            add_cross_gram(self._cross, x, reference, self._fast_bf16)
            return
        if self._cross is None:
            xp = array_namespace(x)
            self._cross = xp.zeros(tuple(self._weight.shape), dtype=xp.float32, device=device(x))
        add_pull(self._cross, x, reference, self._weight, self._fast_bf16)

    def merge(self, other: InputStatistics) -> InputStatistics:
        """New statistics of what both have seen, in the array library and on the device of this one."""
        if self._narrow != other._narrow:
            raise CalibrationError("statistics kept for one weight cannot be merged with those kept for any")
        merged = InputStatistics(weight=self._weight, fast_bf16=self._fast_bf16)
        mine, theirs = self._moments, other._moments
        if mine is not None and theirs is not None:
            _same_width(mine, theirs.absmax.shape[0])
            if (self._cross is None) != (other._cross is None):
                raise CalibrationError("statistics with a reference cannot be merged with statistics without one")
            merged._moments = mine + theirs
        else:
            merged._moments = mine or theirs
        merged._upper = _added(self._upper, other._upper)
        merged._cross = _added(self._cross, other._cross)
        return merged

    @property
    def count(self) -> int:
        """How many vectors were seen."""
        return 0 if self._moments is None else self._moments.count

    @property
    def hessian(self) -> Array:
        """The sum of ``x xᵀ`` over all vectors, (inputs, inputs) float32; not to be written to, the next update does."""
        self._seen()
        if self._upper is None:
            raise CalibrationError(_TAKEN)
        mirror_upper(self._upper)
        return self._upper

    def take_hessian(self) -> Array:
        """:attr:`hessian`, to be written to; these statistics have it no more, and take no further updates."""
        hessian, self._upper, self._weight = self.hessian, None, None
        return hessian

    @property
    def cross(self) -> Array | None:
        """The sum of ``x (reference - x)ᵀ``, (inputs, inputs) float32; None where it was not kept.

        Differences are summed, not ``x referenceᵀ``: taking the Hessian from that would cancel most digits.
        """
        self._seen()
        return None if self._narrow else self._cross

    @property
    def has_reference(self) -> bool:
        """Whether updates came with a reference."""
        return self._cross is not None

    def pull(self, weight: Array, rows: slice = slice(None)) -> Array:
        """``W Cᵀ`` with ``C`` the sum of :attr:`cross` and ``W`` some rows of ``weight``, (outputs, inputs) float32."""
        self._seen()
        if self._cross is None:
            raise CalibrationError(
                "these statistics were shown no reference: there is no difference to pull at outputs"
            )
        if not self._narrow:
            return upstream_pull(like(weight[rows, :], self._cross), self._cross)
        if tuple(weight.shape) != tuple(self._cross.shape):
            raise CalibrationError(
                f"these statistics were kept for a weight of shape {tuple(self._cross.shape)}, not {tuple(weight.shape)}"
            )
        return self._cross[rows, :]

    @property
    def mean_abs(self) -> Array:
        """The mean magnitude of each input."""
        return self._seen().total_abs / self.count

    @property
    def mean_square(self) -> Array:
        """The mean square of each input: how much an error in its weights matters."""
        return self._seen().total_square / self.count

    @property
    def absmax(self) -> Array:
        """The largest magnitude of each input."""
        return self._seen().absmax

    def _seen(self) -> Moments:
        if self._moments is None:
            raise CalibrationError(
                "no data reached this layer; calibrate with at least one batch that runs through it, or quantize it "
                "with an algorithm that needs none (rtn, hqq)"
            )
        return self._moments

    def _checked_reference(self, reference: Array, x: Array) -> Array:
        if tuple(reference.shape) != tuple(x.shape):
            raise CalibrationError(
                f"input and reference must be of the same places: (vectors, inputs) of {tuple(x.shape)} is not "
                f"{tuple(reference.shape)}"
            )
        xp = array_namespace(reference)
        if not bool(xp.all(xp.isfinite(reference))):
            raise CalibrationError("the reference holds NaN or Inf; look for an overflow in the float model")
        return reference


class ScarceData:
    """Layers of which a method has seen too few vectors to find better weights than rounding gives, told of together."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str, int, int]] = []

    def note(self, layers: Sequence[str], method: str, statistics: InputStatistics | None) -> None:
        """Take the statistics into account that ``method`` has of the input of ``layers``."""
        if statistics is None or not statistics.count:
            return
        inputs = int(statistics.absmax.shape[0])
        if statistics.count * _ENOUGH < inputs:
            self._found += [(name, method, statistics.count, inputs) for name in layers]

    def warn(self) -> None:
        """Log the layer that has seen least, and how many others there are."""
        if not self._found:
            return
        name, method, count, inputs = min(self._found, key=lambda each: each[2] / each[3])
        others = f" (and {len(self._found) - 1} other layers)" if len(self._found) > 1 else ""
        logger.warning(
            "%s saw %d vector%s of the %d inputs of layer %r%s, too few to tell how they are related: it may do worse than "
            "rtn. Calibrate with more samples or longer ones; %d vectors would do",
            *(method, count, "" if count == 1 else "s", inputs, name, others, inputs),
        )


def _vectors(x: Array) -> Array:
    if is_torch_array(x):
        x = x.detach()
    if x.ndim == 0:
        raise CalibrationError("the input of a layer has at least one axis, and a single number was given")
    if x.shape[-1] == 0:
        raise CalibrationError(f"the input of a layer has at least one feature, not shape {tuple(x.shape)}")
    return array_namespace(x).reshape(x, (-1, x.shape[-1]))


def _same_width(moments: Moments, width: int) -> None:
    if moments.absmax.shape[0] != width:
        raise CalibrationError(
            f"statistics of {moments.absmax.shape[0]} inputs were shown {width}; a layer keeps its width"
        )


def _added(a: Array | None, b: Array | None) -> Array | None:
    """The sum as a new array, because an update adds to it in place."""
    if a is None or b is None:
        only = a if b is None else b
        return None if only is None else array_namespace(only).asarray(only, copy=True)
    return a + like(b, a)
