"""Take the mean error of a quantized layer out through its bias."""

from __future__ import annotations

from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like

_LEAST_SHARE = 1 / 64


def errors_of_means(weight_error: Array, means: Array) -> Array:
    """What the error of a layer's weight adds to its outputs in the mean, where its inputs have the ``means``.

    ``weight_error`` is laid out as weights of linear layers and convolutions are, outputs first, groups one after the other;
    ``means`` have a row a sample of one value an input channel. Borders that convolutions pad are taken for inside.

    >>> import numpy as np
    >>> errors_of_means(np.float32([[0.5, 0.0], [0.0, -1.0]]), np.float32([[2.0, 3.0]])).tolist()
    [[1.0, -3.0]]
    """
    error = as_float32(weight_error)
    xp = array_namespace(error)
    outputs, inputs = error.shape[:2]
    by_input = error.reshape(outputs, inputs, -1).sum(-1)
    given = like(as_float32(means), error)
    groups = given.shape[1] // inputs
    by_group = by_input.reshape(groups, outputs // groups, inputs)
    return xp.einsum("goi,ngi->ngo", by_group, given.reshape(-1, groups, inputs)).reshape(-1, outputs)


def mean_error(errors: Array, variance: Array) -> Array:
    """The mean error of each output of a layer, one row of ``errors`` a sample; zeros where it is not worth correcting.

    Over all outputs it has to be more than twice its standard error, ``|m|^2 > 4 |s|^2 / n``, and more than a 64th of the
    standard deviation of what the layer gives, whose ``variance`` is by output: less moves results about and no more.

    >>> import numpy as np
    >>> mean_error(np.float32([[1.0, -2.0], [1.0, -1.0]]), np.float32([4.0, 4.0])).tolist()
    [1.0, -1.5]
    >>> mean_error(np.float32([[1.0, -2.0], [-1.0, 2.0]]), np.float32([4.0, 4.0])).tolist()
    [0.0, 0.0]
    """
    errors = as_float32(errors)
    xp = array_namespace(errors)
    count = errors.shape[0]
    if count == 0:
        return xp.zeros_like(like(variance, errors))
    mean = xp.mean(errors, axis=0)
    chance = 4 * xp.sum(xp.var(errors, axis=0)) / max(count - 1, 1)
    least = _LEAST_SHARE**2 * xp.sum(like(variance, errors))
    size = xp.sum(mean * mean)
    return mean if bool((size > chance) & (size > least)) else xp.zeros_like(mean)
