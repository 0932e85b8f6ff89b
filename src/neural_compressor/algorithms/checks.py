"""Checks of weights, Hessians and importances that every weight-only algorithm makes."""

from __future__ import annotations

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_TENSOR, PerBlock, PerChannel, PerGroup, PerToken, TensorScheme, value_range
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32, like
from neural_compressor.schemes.ranges import require_finite, scale_granularity


def checked_weight(weight: Array, scheme: TensorScheme) -> Array:
    """``weight`` as finite float32 of shape (outputs, inputs), for a scheme that has scales to choose."""
    if scheme.is_float:
        raise ConfigError(f"{scheme.dtype.name} has no scale to choose; cast the weight instead of quantizing it")
    if weight.ndim != 2:
        raise QuantizationError(f"a weight has two axes (outputs, inputs), not shape {tuple(weight.shape)}")
    if isinstance(scheme.granularity, (PerBlock, PerToken)):
        raise ConfigError(
            f"weights that are quantized alone have a scale a tensor, channel or group, not {scheme.granularity.name}"
        )
    if isinstance(scheme.granularity, PerChannel) and scheme.granularity.axis % 2 != 0:
        raise ConfigError("a weight (outputs, inputs) has one scale an output: granularity per_channel needs axis 0")
    weight = as_float32(weight)
    require_finite(*value_range(weight, PER_TENSOR), "the weight")
    return weight


def checked_hessian(hessian: Array, weight: Array) -> Array:
    """``hessian`` as a finite float32 (inputs, inputs) array of the library and on the device of ``weight``."""
    inputs = weight.shape[1]
    if tuple(hessian.shape) != (inputs, inputs):
        raise QuantizationError(
            f"a weight of shape {tuple(weight.shape)} needs a Hessian of shape {(inputs, inputs)}, "
            f"not {tuple(hessian.shape)}; was it collected at another layer?"
        )
    hessian = like(hessian, weight)
    require_finite(*value_range(hessian, PER_TENSOR), "the Hessian of the inputs")
    return hessian


def checked_importance(importance: Array, weight: Array) -> Array:
    """``importance`` as finite, non-negative float32 with one value an input of ``weight``."""
    importance = like(importance, weight)
    if tuple(importance.shape) != (weight.shape[1],):
        raise QuantizationError(
            f"a weight of shape {tuple(weight.shape)} needs {weight.shape[1]} importances, one an input, "
            f"not an array of shape {tuple(importance.shape)}"
        )
    require_finite(importance, importance, "the importance of the inputs")
    if bool(array_namespace(importance).any(importance < 0)):
        raise QuantizationError("an importance is a mean of squares and cannot be negative")
    return importance


def group_size(scheme: TensorScheme, inputs: int) -> int:
    """How many inputs share a scale.

    >>> from neural_compressor.dtypes import dtype
    >>> [group_size(TensorScheme(dtype("int4"), granularity=g), 100) for g in (PerGroup(32), PerChannel())]
    [32, 100]
    """
    part = scale_granularity(scheme)
    return min(part.size, inputs) if isinstance(part, PerGroup) else inputs
