"""Round every weight once more, given all the others: the loss can only fall."""

from __future__ import annotations

from neural_compressor.algorithms.columns import Columns
from neural_compressor.schemes.arrays import Array, array_namespace


def coordinate_descent(
    target: Array, hessian: Array, columns: Columns, *, sweeps: int = 1, block_size: int = 128
) -> None:
    """Improve the codes in ``columns`` for ``target`` (inputs, outputs), with scales as they are.

    For one input, with all others fixed, the loss is a parabola in its weight: the code nearest to its vertex is the
    best there is (as in QuantEase, Behdin et al. 2023). The diagonal of ``hessian`` must be positive.
    """
    xp = array_namespace(target)
    values = columns.values()
    slope = xp.matmul(hessian, target - values)
    curvature = xp.linalg.diagonal(hessian)
    inputs = target.shape[0]
    for _ in range(sweeps):
        for first in range(0, inputs, block_size):
            block = slice(first, min(first + block_size, inputs))
            within = hessian[block, block]
            change = xp.zeros_like(values[block, :])
            for i, place in enumerate(range(block.start, block.stop)):
                pull = slope[place, :]
                if i:
                    pull = pull - xp.matmul(within[i, :i], change[:i, :])
                rounded = columns.quantize(place, values[place, :] + pull / curvature[place])
                change[i, :] = rounded - values[place, :]
                values[place, :] = rounded
            slope -= xp.matmul(hessian[:, block], change)
