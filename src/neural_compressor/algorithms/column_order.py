"""The order in which error compensation takes the inputs of a weight, and which inputs share a scale."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neural_compressor.errors import ConfigError

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
