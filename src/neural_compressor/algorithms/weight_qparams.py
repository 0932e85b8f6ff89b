"""Scales and zero points for a weight: from its range, or searched so that the error costs least."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from neural_compressor.algorithms.checks import checked_importance
from neural_compressor.algorithms.losses import GroupLoss, fourth_power, weighted_square
from neural_compressor.algorithms.matrix_parts import row_blocks
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerTensor, QParams, TensorScheme, choose_qparams, fake_quantize, value_range
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.block import is_power_of_two_scale, storable_scale
from neural_compressor.schemes.grid import step_size
from neural_compressor.schemes.ranges import scale_granularity

SEARCHES = (None, "mse")
_NARROWEST, _STEP = 0.35, 0.05
_WIDEST_OF_FLOATS = 1.5  # on an uneven grid the largest weight may do better below the largest value
_CLOSER = (-0.02, -0.01, 0.01, 0.02)
_ENDS = (-0.15, -0.1, -0.05, 0.05, 0.1, 0.15, -0.025, 0.025)

Point = tuple[Array, ...]


def weight_qparams(
    weight: Array,
    scheme: TensorScheme,
    *,
    search: str | None = None,
    importance: Array | None = None,
    full_range: bool | None = None,
) -> QParams:
    """Scales and zero points for ``weight`` (outputs, inputs).

    Without a search they span the range. ``search="mse"`` narrows the range of each part that has its own scale to where
    the squared error is least, each input weighted with its ``importance``. Where that is not given it is the fourth
    power of the error: squares cut off the largest weights, which in some language models are those that matter. In the
    small blocks of block formats that is no danger, and squares did better.

    ``full_range`` lets the scale of a symmetric signed integer be negative, so that the largest weight of either sign gets
    the code that the negative side has more. None does so wherever there is such a code: the steps are finer, and nothing
    is stored in addition.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> w, scheme = np.float32([[0.3, -0.2, 1.0]]), TensorScheme(dtype("int2"))
    >>> float(weight_qparams(w, scheme).scale), float(weight_qparams(w, scheme, full_range=False).scale)
    (-0.5, 1.0)
    """
    if search not in SEARCHES:
        raise ConfigError(f"unknown search {search!r} for the range of a weight; known: None, 'mse'")
    if search is None:
        return _spanning(weight, scheme, _uses_full_range(scheme, full_range))
    if importance is None and scheme.dtype.scale_type is not None:
        loss = weighted_square(scheme, array_namespace(weight).ones_like(weight[0, :]))
    elif importance is None:
        loss = fourth_power(scheme, weight)
    else:
        loss = weighted_square(scheme, checked_importance(importance, weight))
    return least_cost_qparams(weight, scheme, loss, full_range=full_range)


def least_cost_qparams(
    weight: Array, scheme: TensorScheme, loss: GroupLoss, *, full_range: bool | None = None
) -> QParams:
    """Scales and zero points at which ``loss`` of the error is least, never worse than those that span the range.

    ``full_range`` is that of :func:`weight_qparams`.
    """
    xp = array_namespace(weight)
    full_range = _uses_full_range(scheme, full_range)
    # Gone over many times: rows had better lie one after the other in memory.
    weight = xp.reshape(xp.reshape(weight, (-1,)), weight.shape)
    spanning = _spanning(weight, scheme, full_range)
    if isinstance(scale_granularity(scheme), PerTensor):
        return _search(weight, scheme, spanning, loss, full_range)
    found = [_search(weight[rows], scheme, spanning.rows(rows), loss, full_range) for rows in row_blocks(weight)]
    zero_points = [part.zero_point for part in found if part.zero_point is not None]
    return QParams(
        xp.concat([part.scale for part in found]),
        xp.concat(zero_points) if zero_points else None,
        spanning.tensor_scale,
    )


def has_full_range(scheme: TensorScheme) -> bool:
    """Whether there is a code more on one side of zero, so that ``full_range`` means something."""
    return scheme.dtype.is_integer and scheme.dtype.signed and scheme.symmetric and not scheme.reduce_range


def _uses_full_range(scheme: TensorScheme, full_range: bool | None) -> bool:
    if full_range and not has_full_range(scheme):
        raise ConfigError(
            f"full_range is for symmetric signed integers, whose negative side has one code more; {scheme.dtype.name}"
            f"{'' if scheme.symmetric else ' asym'} has none to gain"
        )
    return has_full_range(scheme) if full_range is None else full_range


def _spanning(weight: Array, scheme: TensorScheme, full_range: bool) -> QParams:
    low, high = value_range(weight, scale_granularity(scheme))
    if not full_range:
        return choose_qparams(low, high, scheme)
    xp = array_namespace(weight)
    magnitude = xp.maximum(xp.abs(low), xp.abs(high))
    scale = step_size(magnitude, -float(integer_limits(scheme)[0]))
    return QParams(xp.where(high > -low, -scale, scale))


def _search(weight: Array, scheme: TensorScheme, spanning: QParams, loss: GroupLoss, full_range: bool) -> QParams:
    xp = array_namespace(weight)
    one = xp.ones_like(spanning.scale)
    if scheme.symmetric:

        def scaled(point: Point) -> QParams:
            scale, stored_as = spanning.scale * point[0], scheme.dtype.scale_type
            return replace(spanning, scale=scale if stored_as is None else storable_scale(scale, stored_as))

        best = _descend(weight, scheme, loss, scaled, (one,), _scalings(scheme, full_range))
        return scaled(best)
    low, high = value_range(weight, scale_granularity(scheme))
    # The grid holds zero, and narrowing a range that does not would turn its ends around.
    low, high = xp.clip(low, None, 0.0), xp.clip(high, 0.0, None)

    def narrowed(point: Point) -> QParams:
        return choose_qparams(low * point[0], high * point[1], scheme)

    return narrowed(_descend(weight, scheme, loss, narrowed, (one, one), _narrowings()))


Move = Callable[[Point], Point]


def _descend(
    weight: Array,
    scheme: TensorScheme,
    loss: GroupLoss,
    qparams: Callable[[Point], QParams],
    start: Point,
    moves: Iterable[Move],
) -> Point:
    """Try one move after the other, and keep it for each scale where it costs less."""
    xp = array_namespace(weight)
    best, cost = start, loss(fake_quantize(weight, scheme, qparams(start)) - weight)
    for move in moves:
        trial = move(best)
        trial_cost = loss(fake_quantize(weight, scheme, qparams(trial)) - weight)
        better = trial_cost < cost
        best = tuple(xp.where(better, new, old) for new, old in zip(trial, best, strict=True))
        cost = xp.where(better, trial_cost, cost)
    return best


def _scalings(scheme: TensorScheme, full_range: bool) -> list[Move]:
    """Factors for a scale: a coarse walk over all, then steps around the best."""
    kind = scheme.dtype
    if kind.scale_type is not None and is_power_of_two_scale(kind.scale_type):
        return [_to(factor) for factor in (2.0, 0.5)]
    widest = 1.0 if kind.is_integer else _WIDEST_OF_FLOATS
    if full_range:
        codes = -integer_limits(scheme)[0]
        widest = codes / max(codes - 1, 1)
    count = round((widest - _NARROWEST) / _STEP)
    factors = [widest - i * _STEP for i in range(count + 1)]
    if full_range:
        factors += [-factor for factor in factors]
    return [_to(factor) for factor in factors] + [_by(offset) for offset in _CLOSER]


def _narrowings() -> list[Move]:
    """Fractions of both ends of a range: the same for both first, then each end alone."""
    count = round((1.0 - _NARROWEST) / _STEP)
    both: list[Move] = [_to(1.0 - i * _STEP, 1.0 - i * _STEP) for i in range(1, count + 1)]
    return both + [_end(end, offset) for offset in _ENDS for end in (0, 1)]


def _to(*values: float) -> Move:
    return lambda best: tuple(
        array_namespace(old).full_like(old, value) for old, value in zip(best, values, strict=True)
    )


def _by(offset: float) -> Move:
    return lambda best: tuple(old * (1.0 + offset) for old in best)


def _end(end: int, offset: float) -> Move:
    def move(best: Point) -> Point:
        moved = array_namespace(best[end]).clip(best[end] + offset, 0.0, 1.0)
        return (*best[:end], moved, *best[end + 1 :])

    return move
