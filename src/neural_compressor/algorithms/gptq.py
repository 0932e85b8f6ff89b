"""GPTQ: round one input after the other, and let those not yet rounded make up for the error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from array_api_compat import device
from pydantic import AfterValidator, Field, PositiveInt, model_validator

from neural_compressor.algorithms.catalogue import EXECUTOR, FullRange, Hadamard, LayerOptions, register_algorithm
from neural_compressor.algorithms.checks import checked_hessian, checked_weight, group_size
from neural_compressor.algorithms.columns import Columns, chosen_beforehand, column_order
from neural_compressor.algorithms.hadamard import Rotation, rotated
from neural_compressor.algorithms.hessian_factor import inverse_factor
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.matrix_parts import transform_both_axes
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.algorithms.upstream import Pull, add_upstream
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.observers.base import to_numpy
from neural_compressor.schemes import PER_CHANNEL, QParams, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace

ChooseScales = Callable[[Array, slice], QParams]
"""Scales, one an output, for weights (outputs, inputs) that stand at the given places."""
_WIDEST = 128


class GPTQOptions(LayerOptions):
    """The options of GPTQ. Two additions to the published algorithm are on: ``search`` and ``upstream``."""

    act_order: bool = Field(default=False, description="take the inputs with the largest activations first")
    hybrid_order: bool = Field(
        default=False, description="the same group by group, without moving inputs between groups"
    )
    static_groups: bool = Field(
        default=False, description="choose all scales beforehand, from the weights as they came"
    )
    percdamp: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.01, description="what is added to the diagonal of the Hessian, relative to its mean"
    )
    block_size: Annotated[PositiveInt, AfterValidator(lambda size: min(size, _WIDEST))] = Field(
        default=128,
        description="inputs rounded between two matrix products, 128 at most; changes the speed and no result",
    )
    search: Literal["mse"] | None = Field(
        default="mse",
        description="scales with the least loss, each input weighted with what its error costs; None: the range",
    )
    full_range: FullRange = None
    upstream: bool = Field(
        default=True, description="aim at the outputs of the float model, where inputs already carry an error"
    )
    cross_mix: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.35, description="how far to go with that; all the way fits calibration data too closely"
    )
    hadamard: Hadamard = False
    true_sequential: Annotated[bool, EXECUTOR] = Field(
        default=False, description="see the layers of a block behind those of the same block quantized before them"
    )

    @model_validator(mode="after")
    def _one_order(self) -> GPTQOptions:
        if self.act_order and self.hybrid_order:
            raise ValueError("act_order and hybrid_order are two orders of the same inputs; choose one")
        return self


def gptq(
    weight: Array,
    hessian: Array,
    scheme: TensorScheme,
    *,
    pull: Pull | None = None,
    overwrite_hessian: bool = False,
    **options: Any,
) -> LayerResult:
    """``weight`` (outputs, inputs) quantized so that the outputs move least for inputs with the given ``hessian``.

    Each input is rounded for all outputs at once, and the error is spread over the inputs not yet rounded by the
    coefficients in the upper Cholesky factor of the inverse Hessian (Frantar et al. 2022, algorithm 1). The scales of a
    group are chosen when its turn comes, from the weights as compensated by then, so ``block_size`` changes the speed and
    not the result.

    - ``options``: those of :class:`GPTQOptions` that are not for executors.
    - ``pull``: gives, for some outputs, what :func:`~neural_compressor.algorithms.upstream.upstream_pull` makes of their
      weights and :attr:`InputStatistics.cross`. The layer then aims at the float layer's outputs on the float model's
      inputs, not at its own outputs on inputs that already carry an error; ``cross_mix`` (0 to 1) says how far. On a small
      language model a quarter to a half did best at 2 to 4 bits.
    - ``overwrite_hessian``: work in the memory of ``hessian``, which is of no use afterwards, instead of a copy.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> same = np.float32([[1.0, 0.99], [0.99, 1.0]])
    >>> w, scheme = np.float32([[0.3, 0.3, 1.0]]), TensorScheme(dtype("int2"))
    >>> hessian = np.eye(3, dtype=np.float32)
    >>> hessian[:2, :2] = same
    >>> gptq(w, hessian, scheme).array.codes.tolist()  # one of the first two takes what the other lost
    [[-1, 0, -2]]
    """
    read = GPTQOptions.of_function(options)
    weight = checked_weight(weight, scheme)
    hessian = checked_hessian(hessian, weight)
    xp = array_namespace(weight)
    beforehand = read.static_groups or chosen_beforehand(scheme)
    diagonal = xp.linalg.diagonal(hessian)
    order = column_order(
        to_numpy(diagonal),
        group_size(scheme, weight.shape[1]),
        act_order=read.act_order,
        hybrid_order=read.hybrid_order,
        static_groups=beforehand,
    )
    mean = float(xp.mean(diagonal))
    index = xp.asarray(order.order, device=device(weight))
    square = hessian if overwrite_hessian else xp.asarray(hessian, copy=True)
    if not order.is_natural:
        transform_both_axes(square, lambda rows: xp.take(rows, index, axis=1))
    factor = inverse_factor(square, read.percdamp, overwrite=True)
    target = xp.take(weight.T, index, axis=0)
    if pull is not None and read.upstream and mean > 0 and read.cross_mix > 0:
        add_upstream(target, pull, index, factor, read.cross_mix / mean)
    # The loss is a sum over inputs of squared rounding errors over squared pivots: that is what an error will cost.
    importance = xp.linalg.diagonal(factor) ** -2.0

    def scales(part: Array, part_scheme: TensorScheme, weights: Array) -> QParams:
        return weight_qparams(
            part,
            part_scheme,
            search=read.search,
            importance=weights if read.search else None,
            full_range=read.full_range,
        )

    columns, qparams = Columns.empty(weight, scheme, order), None
    if beforehand:
        home = xp.asarray(order.inverse, device=device(weight))
        qparams = scales(xp.take(target.T, home, axis=1), scheme, xp.take(importance, home, axis=0))
        columns.set_all(qparams)
    one_group = replace(scheme, granularity=PER_CHANNEL)
    round_with_compensation(
        target,
        factor,
        columns,
        read.block_size,
        None if beforehand else lambda part, places: scales(part, one_group, importance[places]),
    )
    return LayerResult(columns.array(qparams), index if order.moved else None)


@register_algorithm("gptq", options=GPTQOptions, needs_statistics=True)
def _quantize(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    upstream: bool,
    rotation: Rotation | None = None,
    use_up: bool = False,
    **options: Any,
) -> LayerResult:
    """With ``use_up`` the work is done in the memory of the statistics, which are of no use afterwards."""

    def pull(rows: slice) -> Array:
        return rotated(statistics.pull(weight, rows), rotation)

    known_pull = pull if upstream and statistics.has_reference else None
    hessian = statistics.take_hessian() if use_up else statistics.hessian
    if rotation is not None:
        hessian, use_up = rotation.apply_to_hessian(hessian, overwrite=use_up), True
    found = gptq(rotated(weight, rotation), hessian, scheme, pull=known_pull, overwrite_hessian=use_up, **options)
    return replace(found, rotation=rotation)


def round_with_compensation(
    work: Array, factor: Array, columns: Columns, block_size: int, choose: ChooseScales | None
) -> None:
    """Fill ``columns`` with codes for ``work`` (inputs, outputs), which is used up.

    Where an input is done its row of ``work`` holds its error, scaled so that the rows of ``factor`` say what the others
    owe to it. Errors are applied when a run of inputs begins and, inside the run, when a block begins: matrix products.
    Only inside a block is it done input by input. Scales are chosen at the beginning of a run, or are there already.
    """
    for start, stop in columns.order.extents:
        _apply_errors(work, factor, slice(0, start), slice(start, stop))
        if choose is not None:
            qparams = choose(work[start:stop, :].T, slice(start, stop))
            columns.set_group(int(columns.order.group[start]), qparams)
        for first in range(start, stop, block_size):
            block = slice(first, min(first + block_size, stop))
            _apply_errors(work, factor, slice(start, first), block)
            _round_block(work, factor, columns, block)


def _apply_errors(work: Array, factor: Array, done: slice, ahead: slice) -> None:
    """Let the inputs ``ahead`` make up for the errors of those ``done``."""
    if done.stop > done.start:
        work[ahead, :] -= array_namespace(work).matmul(factor[done, ahead].T, work[done, :])


def _round_block(work: Array, factor: Array, columns: Columns, block: slice) -> None:
    xp = array_namespace(work)
    coefficients = factor[block, block].T
    pivots = xp.linalg.diagonal(coefficients)
    for i, place in enumerate(range(block.start, block.stop)):
        values = work[place, :]
        if i:
            values = values - xp.matmul(coefficients[i, :i], work[block.start : place, :])
        work[place, :] = (values - columns.quantize(place, values)) / pivots[i]
