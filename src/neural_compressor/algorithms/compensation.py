"""The loop of GPTQ: round an input for all outputs, and spread the error over the inputs that follow."""

from __future__ import annotations

from collections.abc import Callable

from neural_compressor.algorithms.columns import Columns
from neural_compressor.schemes import QParams
from neural_compressor.schemes.arrays import Array, array_namespace

ChooseScales = Callable[[Array, slice], QParams]
"""Scales, one an output, for weights (outputs, inputs) that stand at the given places."""


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
