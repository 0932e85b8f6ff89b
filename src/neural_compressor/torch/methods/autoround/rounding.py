"""The rounding of one weight while it is learned.

A weight ``w`` with scale ``s`` and zero point ``z`` becomes ``(clip(round(w / s + v) + z) - z) * s``. AutoRound (Cheng et
al. 2023) learns ``v``, one number a weight within half a step, and a factor for each ``s``, by the sign of the gradient
that a rounding which lets gradients straight through would have. Where the numbers of a type are not evenly spaced, their
places in a row are: half a step is then half the way to the next of them. Scales that are stored in a small type (nvfp4) are
rounded to it at each step; bare powers of two (MX) stay where they start. There is no autograd in here: one pass over a
cache-sized part of the weight at a time takes the gradient in and puts the new values out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from neural_compressor.dtypes import DType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_TENSOR, QParams, QuantizedArray, TensorScheme, in_pairs
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.block import is_power_of_two_scale, storable_scale
from neural_compressor.schemes.grid import code_dtype, encode
from neural_compressor.schemes.pair_safe import pair_safe_codes
from neural_compressor.schemes.ranges import from_parts, scale_granularity, to_parts

_PARTS_OF_A_STEP, _MOST_INTERVALS = 64, 1 << 16


class Grid(Protocol):
    """Numbers in a row, counted from any of them; lines of a weight are parts of its rows with a scale each."""

    def places(self, part: slice, exact: Tensor) -> Tensor:
        """Where the weights of some lines, over their scale, lie in the row: a whole number is a number of the grid."""

    def clipped(self, part: slice, places: Tensor) -> Tensor:
        """Whole ``places``, moved to the ends of the row where they lie beyond."""

    def numbers(self, places: Tensor) -> Tensor:
        """The numbers at whole places inside the row; may be the same tensor."""

    def codes(self, part: slice, numbers: Tensor) -> Tensor:
        """The codes of numbers of the grid."""


def check_scheme(scheme: TensorScheme) -> None:
    """Refuse what has no scales."""
    if scheme.is_float:
        raise ConfigError(
            f"AutoRound learns how weights are rounded to a grid with scales, and {scheme.dtype.name} has none; use an "
            "integer type (int2 to int8), nf4, fp4, fp8 or a block format"
        )


def grid_of(scheme: TensorScheme, zero: Tensor) -> Grid:
    """The grid of a scheme whose lines have the zero points ``zero`` (lines, 1)."""
    check_scheme(scheme)
    kind = scheme.dtype.element_type
    if kind.is_integer:
        low, high = integer_limits(scheme) if scheme.dtype.is_integer else (kind.min, kind.max)
        return _Integers(kind, zero, low - zero, high - zero)
    return _values(kind, zero.device)


@dataclass(frozen=True)
class _Integers:
    kind: DType
    zero: Tensor
    low: Tensor
    high: Tensor

    def places(self, part: slice, exact: Tensor) -> Tensor:
        return exact

    def clipped(self, part: slice, places: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(places, self.low[part]), self.high[part])

    def numbers(self, places: Tensor) -> Tensor:
        return places

    def codes(self, part: slice, numbers: Tensor) -> Tensor:
        return numbers.add(self.zero[part]).to(code_dtype(torch, self.kind))


@dataclass(frozen=True)
class _Values:
    """Places are a line in each of many intervals: ``exact * slope + start``."""

    kind: DType
    table: Tensor
    slope: Tensor
    start: Tensor
    per_unit: float | None

    def places(self, part: slice, exact: Tensor) -> Tensor:
        if self.per_unit is None:
            interval = torch.bucketize(exact, self.table, out_int32=True).sub_(1)
        else:
            interval = ((exact - self.table[0]) * self.per_unit).clamp_(-1, len(self.slope)).int()
        interval = interval.clamp_(0, len(self.slope) - 1).flatten()
        slope, start = self.slope.index_select(0, interval), self.start.index_select(0, interval)
        return slope.reshape(exact.shape).mul_(exact).add_(start.reshape(exact.shape))

    def clipped(self, part: slice, places: Tensor) -> Tensor:
        return places.clamp(0, len(self.table) - 1)

    def numbers(self, places: Tensor) -> Tensor:
        return self.table.index_select(0, places.flatten().int()).reshape(places.shape)

    def codes(self, part: slice, numbers: Tensor) -> Tensor:
        codes: Tensor = encode(numbers, self.kind)
        return codes


def _values(kind: DType, device: torch.device) -> _Values:
    table = torch.tensor(kind.grid, dtype=torch.float32, device=device)
    step = table.diff()
    slope, start = 1 / step, torch.arange(len(step), device=device) - table[:-1] / step
    span, narrow = float(table[-1] - table[0]), float(step.min()) / _PARTS_OF_A_STEP
    if span / narrow > _MOST_INTERVALS:
        return _Values(kind, table, slope, start, None)
    # Finding the interval by a search is what would take most of the time, so all are made equally wide: one that lies on
    # two lines takes either, which differ by little there.
    middles = torch.arange(narrow / 2, span, narrow, device=device) + table[0]
    line = torch.bucketize(middles, table).sub_(1).clamp_(0, len(step) - 1)
    return _Values(kind, table, slope[line], start[line], 1 / narrow)


_CPU_VALUES = 1 << 17  # half a megabyte of float32: what a part needs stays in the cache of a core
_FACTORS = (0.25, 2.0)


class LearnedRounding:
    """``weight`` (outputs, inputs) on the grid of ``scheme``, at first rounded to nearest with ``qparams``.

    With ``codes``, integers next to the weights, these are where learning starts.

    >>> from neural_compressor.dtypes import IntType
    >>> from neural_compressor.schemes import qparams_of
    >>> w, scheme = torch.tensor([[0.4, -0.7, 7.0]]), TensorScheme(IntType(4))
    >>> rounding = LearnedRounding(w, scheme, qparams_of(w, scheme))
    >>> rounding.values().tolist()
    [[0.0, -1.0, 7.0]]
    >>> rounding.step(torch.tensor([[-1.0, 0.0, 0.0]]), rate=0.2, scale_rate=0.0, out=torch.empty(1, 3)).tolist()
    [[1.0, -1.0, 7.0]]
    """

    def __init__(
        self,
        weight: Tensor,
        scheme: TensorScheme,
        qparams: QParams,
        momentum: float = 0.0,
        codes: Tensor | None = None,
    ) -> None:
        if qparams.scale is None:
            raise ConfigError(f"{scheme.dtype.name} needs scales to start from, and the parameters given have none")
        self.scheme = scheme
        self.shape = tuple(weight.shape)
        self._granularity = scale_granularity(scheme)
        parts = to_parts(weight.float(), self._granularity)
        self._parts_shape = tuple(parts.shape)
        # Lines share a scale each: (scales, values).
        self._weight = parts.reshape((1, -1) if self._granularity == PER_TENSOR else (-1, parts.shape[-1])).contiguous()
        self._trend = torch.zeros_like(self._weight) if momentum else None
        self._momentum = momentum
        self._scale_shape = tuple(qparams.scale.shape)
        self._start = qparams.scale.reshape(-1, 1).float()
        self._factor = torch.ones_like(self._start)
        self._zero_point, self._tensor_scale = qparams.zero_point, qparams.tensor_scale
        self._stored_as = scheme.dtype.scale_type
        # Between two powers of two there is nothing that small steps could lead to.
        self._learns_scales = self._stored_as is None or not is_power_of_two_scale(self._stored_as)
        zero = (
            torch.zeros_like(self._start) if qparams.zero_point is None else qparams.zero_point.reshape(-1, 1).float()
        )
        self._grid = grid_of(scheme, zero)
        self._first = None if codes is None else self._offsets_of(to_parts(codes.float(), self._granularity), zero)
        self._offset = torch.zeros_like(self._weight) if self._first is None else self._first.clone()

    @property
    def scale(self) -> Tensor:
        """The scales as learned so far, in the shape that the scheme's granularity says."""
        return self._storable(self._start * self._factor).reshape(self._scale_shape)

    def reset(self) -> None:
        """Forget what was learned."""
        self._offset.copy_(torch.zeros(()) if self._first is None else self._first)
        self._factor.fill_(1.0)

    def values(self, out: Tensor | None = None) -> Tensor:
        """The quantized weight (outputs, inputs) in float32, or put in ``out``, in whatever dtype that has."""
        lines = self._lines_in(out)
        for part in self._parts():
            scale = self._scale(part)
            lines[part] = self._numbers(part, self._weight[part] / scale).mul_(scale)
        return self._put(lines, out)

    def step(self, gradient: Tensor, rate: float, scale_rate: float, out: Tensor) -> Tensor:
        """Move against the sign of ``gradient``, that of the loss by :meth:`values`, and put the new values in ``out``.

        ``rate`` is in steps of the grid, ``scale_rate`` a fraction of the scale; 0 leaves the scales alone.
        """
        gradients, lines = self._as_lines(gradient), self._lines_in(out)
        for part in self._parts():
            slope, scale = gradients[part].float(), self._scale(part)
            exact = self._weight[part] / scale
            places, rounded = self._places(part, exact)
            # 1 where no end of the grid clipped the weight, else 0: a mask in float is many times faster than in bool.
            inside = rounded.sub_(places).abs_().clamp_(max=1.0).neg_().add_(1.0)
            if scale_rate and self._learns_scales:
                # By the scale a value grows as its number; less weight / scale, which shrinks, where it is not clipped.
                numbers = self._grid.numbers(places)
                by_scale = numbers.sub_(exact.mul_(inside)).mul_(slope).sum(1, keepdim=True)
                moved = self._factor[part].sub_(torch.sign(by_scale * self._start[part]), alpha=scale_rate)
                self._factor[part] = moved.clamp_(*_FACTORS)
                scale = self._scale(part)
                exact = torch.div(self._weight[part], scale, out=exact)
            if self._trend is not None:
                slope = self._trend[part].mul_(self._momentum).add_(slope)
            direction = (slope * inside).mul_(torch.sign(scale)).sign_()
            self._offset[part] = self._offset[part].sub_(direction, alpha=rate).clamp_(-0.5, 0.5)
            lines[part] = self._numbers(part, exact).mul_(scale)
        return self._put(lines, out)

    def result(self, pairs: np.ndarray | None = None) -> QuantizedArray:
        """Codes and scales that dequantize to exactly :meth:`values`.

        But where the scheme wants pairs of columns safe for kernels that add in 16 bits, those next to each other or
        ``pairs``, a pair of codes that is too large loses what it has too much.
        """
        lines = [
            self._grid.codes(part, self._numbers(part, self._weight[part] / self._scale(part)))
            for part in self._parts()
        ]
        whole = from_parts(torch.cat(lines).reshape(self._parts_shape), self.shape, self._granularity)
        codes = whole.contiguous()
        array = QuantizedArray(codes, self.scale, self._zero_point, self.scheme, self.shape, self._tensor_scale)
        if not self.scheme.pair_safe:
            return array
        safe = pair_safe_codes(array.dequantize(), array.scale, in_pairs(self.shape[1]) if pairs is None else pairs)
        return replace(array, codes=safe)

    def _offsets_of(self, codes: Tensor, zero: Tensor) -> Tensor:
        """What has each weight rounded to its code: nothing where that is the nearest."""
        exact, numbers = self._weight / self._scale(slice(None)), codes.reshape(self._weight.shape) - zero
        offsets: Tensor = (numbers - exact).clamp_(-0.5, 0.5).mul_(exact.round() != numbers)
        return offsets

    def _numbers(self, part: slice, exact: Tensor) -> Tensor:
        """The numbers of the grid that the weights of a part become."""
        return self._grid.numbers(self._places(part, exact)[0])

    def _places(self, part: slice, exact: Tensor) -> tuple[Tensor, Tensor]:
        """The places of those numbers, and the same before the ends of the grid clipped them."""
        rounded = (self._grid.places(part, exact) + self._offset[part]).round_()
        return self._grid.clipped(part, rounded), rounded

    def _scale(self, part: slice) -> Tensor:
        scale: Tensor = self._storable(self._start[part] * self._factor[part])
        return scale if self._tensor_scale is None else scale * self._tensor_scale

    def _storable(self, scale: Tensor) -> Tensor:
        """The nearest scales of the type in which they are stored."""
        found: Tensor = scale if self._stored_as is None else storable_scale(scale, self._stored_as)
        return found

    def _parts(self) -> Iterator[slice]:
        """Cache-sized runs of lines on a CPU, all at once elsewhere."""
        count, size = self._weight.shape
        step = max(1, _CPU_VALUES // size) if self._weight.device.type == "cpu" else count
        return (slice(start, start + step) for start in range(0, count, step))

    def _as_lines(self, matrix: Tensor) -> Tensor:
        """(outputs, inputs) in lines; where a last group is short, the places it lacks are zero."""
        missing = self._weight.numel() // self.shape[0] - self.shape[1] if len(self._parts_shape) == 3 else 0
        return (F.pad(matrix, (0, missing)) if missing else matrix).reshape(self._weight.shape)

    def _lines_in(self, out: Tensor | None) -> Tensor:
        """The memory of ``out`` as lines where all groups are full, else new memory."""
        if out is None or out.numel() != self._weight.numel():
            return torch.empty_like(self._weight)
        return out.view(self._weight.shape)

    def _put(self, lines: Tensor, out: Tensor | None) -> Tensor:
        if out is not None and lines.data_ptr() == out.data_ptr():
            return out
        values = from_parts(lines.reshape(self._parts_shape), self.shape, self._granularity)
        return values if out is None else out.copy_(values)
