"""The inputs of a weight in the order error compensation takes them, quantized one input at a time for all outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import device

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerTensor, QParams, QuantizedArray, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.grid import code_dtype, decode, encode
from neural_compressor.schemes.ranges import scale_granularity, scale_shape

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ColumnOrder:
    """``order[p]`` is the input taken at place ``p``, and ``group[p]`` the number of its scale.

    ``extents`` cuts the places into runs whose scales are chosen when the run begins. ``moved`` says that a group is a
    run of places and not of inputs, so that the weight must be stored in this order.
    """

    order: Index
    group: Index
    extents: Sequence[tuple[int, int]]
    moved: bool = False

    @property
    def is_natural(self) -> bool:
        """Whether inputs are taken as they stand."""
        return bool(np.all(self.order == np.arange(self.order.shape[0])))

    @property
    def inverse(self) -> Index:
        """The place of each input."""
        return np.argsort(self.order)


def column_order(
    diagonal: npt.NDArray[np.floating],
    size: int,
    *,
    act_order: bool = False,
    hybrid_order: bool = False,
    static_groups: bool = False,
) -> ColumnOrder:
    """How to take inputs whose second moments are ``diagonal``, with ``size`` of them to a group.

    - as they stand, by default;
    - ``act_order``: the largest first, so that all the others can make up for what matters most. Groups are cut along
      that order; with ``static_groups`` they stay where they stand, and their scales are chosen beforehand;
    - ``hybrid_order``: groups stay where they stand and are taken whole, the one with the largest mean first, and inside
      a group the largest input first. Scales still see the weights as compensated so far, and nothing has to be
      permuted at run time.

    >>> moments = np.asarray([1.0, 5.0, 3.0, 9.0])
    >>> column_order(moments, 2, act_order=True).order.tolist()
    [3, 1, 2, 0]
    >>> column_order(moments, 2, hybrid_order=True).order.tolist()
    [3, 2, 1, 0]
    """
    if act_order and hybrid_order:
        raise ConfigError("act_order and hybrid_order are two orders of the same inputs; choose one")
    inputs = diagonal.shape[0]
    places = np.arange(inputs)
    home = places // size
    if hybrid_order:
        groups = int(home[-1]) + 1
        mean = np.bincount(home, weights=diagonal) / np.bincount(home)
        rank = np.empty(groups, np.int64)
        rank[np.argsort(-mean, kind="stable")] = np.arange(groups)
        order = np.lexsort((-diagonal, rank[home]))
    elif act_order:
        order = np.argsort(-diagonal, kind="stable")
    else:
        order = places
    moved = act_order and not static_groups and size < inputs
    group = home if moved else home[order]
    return ColumnOrder(order, group, [(0, inputs)] if static_groups else _runs(group), moved)


def _runs(group: Index) -> list[tuple[int, int]]:
    """Where the number of the group changes."""
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), group.shape[0]]
    return list(itertools.pairwise(cuts))


@dataclass
class Columns:
    """Codes (inputs, outputs) under way, at the places of ``order``, with scales (groups, outputs).

    Rows hold inputs because each is worked on as a whole: a contiguous run in memory.
    """

    codes: Array
    scale: Array
    zero_point: Array | None
    order: ColumnOrder
    scheme: TensorScheme

    @classmethod
    def empty(cls, weight: Array, scheme: TensorScheme, order: ColumnOrder) -> Columns:
        """Nothing quantized yet of ``weight`` (outputs, inputs), and no scales chosen."""
        xp = array_namespace(weight)
        outputs, inputs = weight.shape
        groups, where = int(order.group.max()) + 1, device(weight)
        codes = xp.zeros((inputs, outputs), dtype=code_dtype(xp, scheme.dtype.element_type), device=where)
        scale = xp.ones((groups, outputs), dtype=xp.float32, device=where)
        return cls(codes, scale, xp.zeros_like(scale) if scheme.has_zero_point else None, order, scheme)

    def set_group(self, group: int, qparams: QParams) -> None:
        """Take over the scales chosen for one group, one an output."""
        self.scale[group, :] = array_namespace(self.scale).reshape(qparams.scale, (-1,))
        if self.zero_point is not None:
            xp = array_namespace(self.scale)
            self.zero_point[group, :] = xp.astype(xp.reshape(qparams.zero_point, (-1,)), xp.float32)

    def set_all(self, qparams: QParams) -> None:
        """Take over scales chosen beforehand, in the shape the granularity says."""
        xp = array_namespace(self.scale)
        self.scale[...] = _by_group(qparams.scale, self.scale)
        if qparams.tensor_scale is not None:
            self.scale *= qparams.tensor_scale
        if self.zero_point is not None:
            self.zero_point[...] = xp.astype(_by_group(qparams.zero_point, self.scale), xp.float32)

    def quantize(self, place: int, values: Array) -> Array:
        """Keep the codes nearest to ``values`` (one an output) and give back what they stand for."""
        xp = array_namespace(values)
        group = int(self.order.group[place])
        scale, steps = self.scale[group], values / self.scale[group]
        if not self.scheme.dtype.is_integer:
            kind = self.scheme.dtype.element_type
            codes = encode(steps, kind)
            self.codes[place, :] = codes
            return decode(codes, kind) * scale
        zero_point = None if self.zero_point is None else self.zero_point[group]
        rounded = xp.round(steps)
        codes = xp.clip(rounded if zero_point is None else rounded + zero_point, *integer_limits(self.scheme))
        self.codes[place, :] = xp.astype(codes, self.codes.dtype)
        return (codes if zero_point is None else codes - zero_point) * scale

    def array(self, beforehand: QParams | None) -> QuantizedArray:
        """The quantized weight (outputs, inputs): at its places where groups have moved, else in its own order."""
        xp = array_namespace(self.codes)
        shape = (self.codes.shape[1], self.codes.shape[0])
        places = xp.arange(shape[1], device=device(self.codes))
        if not self.order.moved:
            places = xp.asarray(self.order.inverse, device=device(self.codes))
        codes = xp.take(self.codes.T, places, axis=1)
        if beforehand is not None:
            qparams = beforehand
        else:
            lead = scale_shape(shape, scale_granularity(self.scheme))
            zero_point = None if self.zero_point is None else xp.astype(self.zero_point, xp.int32)
            qparams = QParams(
                _by_output(self.scale, lead), None if zero_point is None else _by_output(zero_point, lead)
            )
        return QuantizedArray(codes, qparams.scale, qparams.zero_point, self.scheme, shape, qparams.tensor_scale)


def chosen_beforehand(scheme: TensorScheme) -> bool:
    """Whether scales cannot be chosen group by group, because the format ties them all together."""
    return isinstance(scale_granularity(scheme), PerTensor) or scheme.dtype.has_tensor_scale


def _by_group(parameter: Array, like_scale: Array) -> Array:
    xp = array_namespace(parameter)
    grouped = parameter.T if parameter.ndim == 2 else parameter
    return xp.broadcast_to(grouped, like_scale.shape)


def _by_output(parameter: Array, shape: tuple[int, ...]) -> Array:
    """(groups, outputs) as the granularity wants it, in memory of its own."""
    xp = array_namespace(parameter)
    if len(shape) == 1:
        return xp.reshape(parameter, shape)
    return xp.take(parameter.T, xp.arange(parameter.shape[0], device=device(parameter)), axis=1)
