"""The numbers that a weight can be rounded to while its rounding is learned: integers, or a list of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neural_compressor.dtypes import BlockType, CodebookType, FloatType, IntType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.grid import code_dtype, encode

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
    """Refuse what has no scales that could be learned."""
    if isinstance(scheme.dtype, BlockType):
        raise ConfigError(
            f"AutoRound learns scales, and those of {scheme.dtype.name} are of a small type of their own; use an integer "
            "type (int2 to int8), nf4, fp4 or fp8, or rtn, gptq or awq for this one"
        )


def grid_of(scheme: TensorScheme, zero: Tensor) -> Grid:
    """The grid of a scheme whose lines have the zero points ``zero`` (lines, 1)."""
    check_scheme(scheme)
    kind = scheme.dtype
    if isinstance(kind, IntType):
        low, high = integer_limits(scheme)
        return _Integers(kind, zero, low - zero, high - zero)
    assert isinstance(kind, FloatType | CodebookType)
    return _values(kind, zero.device)


@dataclass(frozen=True)
class _Integers:
    kind: IntType
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

    kind: FloatType | CodebookType
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


def _values(kind: FloatType | CodebookType, device: torch.device) -> _Values:
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
