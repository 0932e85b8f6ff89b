"""GPTQ: round one input after the other, and let those not yet rounded make up for the error."""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import device

from neural_compressor.algorithms.both_sides import change_both_sides
from neural_compressor.algorithms.checks import checked_hessian, checked_weight, group_size
from neural_compressor.algorithms.column_order import column_order
from neural_compressor.algorithms.columns import Columns, chosen_beforehand
from neural_compressor.algorithms.compensation import round_with_compensation
from neural_compressor.algorithms.hessian_factor import inverse_factor
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.upstream import Pull, add_upstream
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.errors import ConfigError
from neural_compressor.observers.base import to_numpy
from neural_compressor.schemes import PER_CHANNEL, QParams, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace


def gptq(
    weight: Array,
    hessian: Array,
    scheme: TensorScheme,
    *,
    act_order: bool = False,
    hybrid_order: bool = False,
    static_groups: bool = False,
    percdamp: float = 0.01,
    block_size: int = 128,
    search: str | None = None,
    full_range: bool | None = None,
    pull: Pull | None = None,
    cross_mix: float = 0.35,
    overwrite_hessian: bool = False,
) -> LayerResult:
    """``weight`` (outputs, inputs) quantized so that the outputs move least for inputs with the given ``hessian``.

    Each input is rounded for all outputs at once, and the error is spread over the inputs not yet rounded by the
    coefficients in the upper Cholesky factor of the inverse Hessian (Frantar et al. 2022, algorithm 1). The scales of a
    group are chosen when its turn comes, from the weights as compensated by then, so ``block_size`` changes the speed and
    not the result.

    - ``act_order``, ``hybrid_order``, ``static_groups``: see
      :func:`~neural_compressor.algorithms.column_order.column_order`.
    - ``percdamp``: what is added to the diagonal of the Hessian, relative to its mean.
    - ``search="mse"``: scales with the least squared error, each input weighted with what its error will cost.
    - ``full_range``: see :func:`~neural_compressor.algorithms.weight_qparams.weight_qparams`.
    - ``pull``: gives, for some outputs, what :func:`~neural_compressor.algorithms.upstream.upstream_pull` makes of their
      weights and :attr:`InputStatistics.cross`. The layer then aims at the float layer's outputs on the float model's
      inputs, not at its own outputs on inputs that already carry an error; ``cross_mix`` (0 to 1) says how far. All the
      way fits calibration data too closely: on a small language model a quarter to a half did best at 2 to 4 bits.
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
    if block_size < 1:
        raise ConfigError(f"block_size is a number of inputs, at least 1, not {block_size}")
    if not 0 <= cross_mix <= 1:
        raise ConfigError(f"cross_mix goes from 0 (leave the upstream error) to 1 (correct all of it), not {cross_mix}")
    weight = checked_weight(weight, scheme)
    hessian = checked_hessian(hessian, weight)
    xp = array_namespace(weight)
    beforehand = static_groups or chosen_beforehand(scheme)
    diagonal = xp.linalg.diagonal(hessian)
    order = column_order(
        to_numpy(diagonal),
        group_size(scheme, weight.shape[1]),
        act_order=act_order,
        hybrid_order=hybrid_order,
        static_groups=beforehand,
    )
    mean = float(xp.mean(diagonal))
    index = xp.asarray(order.order, device=device(weight))
    square = hessian if overwrite_hessian else xp.asarray(hessian, copy=True)
    if not order.is_natural:
        change_both_sides(square, lambda rows: xp.take(rows, index, axis=1))
    factor = inverse_factor(square, percdamp, overwrite=True)
    target = xp.take(weight.T, index, axis=0)
    if pull is not None and mean > 0 and cross_mix > 0:
        add_upstream(target, pull, index, factor, cross_mix / mean)
    # The loss is a sum over inputs of squared rounding errors over squared pivots: that is what an error will cost.
    importance = xp.linalg.diagonal(factor) ** -2.0

    def scales(part: Array, part_scheme: TensorScheme, weights: Array) -> QParams:
        return weight_qparams(
            part, part_scheme, search=search, importance=weights if search else None, full_range=full_range
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
        block_size,
        None if beforehand else lambda part, places: scales(part, one_group, importance[places]),
    )
    return LayerResult(columns.array(qparams), index if order.moved else None)
