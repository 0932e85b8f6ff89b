"""The quantized weights of ops: found by the method of each scheme, and their biases corrected for what rounding does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from neural_compressor.algorithms import ALGORITHMS, LayerResult, errors_of_means, mean_error, needs_data, options_of
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import OpKey, OpScheme, QuantizedArray, quantize
from neural_compressor.tensorflow.float_graph import Array, FloatGraph, Weight
from neural_compressor.tensorflow.statistics import ChannelMeans, ChannelVariance, LayerInputs

_EXECUTED = ("layer_wise",)
_IN_FILES = {"integer_zero": True, "full_range": False}
"""Options as files have weights: zero points are integers, and scales are not negative."""


def check_method(key: OpKey, scheme: OpScheme, graph: FloatGraph) -> None:
    """Refuse a method, or an option of one, that is not carried out here."""
    method = scheme.method
    if method is None or scheme.weight is None:
        return
    algorithm, options = ALGORITHMS[method.name], options_of(method)
    if algorithm.quantize is None:
        raise ConfigError(f"{method.name} trains whole blocks of a model, which is not done on {graph.kind}; use gptq")
    for name in options.names(executor=True):
        if name in options.distinct() and name not in _EXECUTED:
            raise ConfigError(f"{method.name}: {name} is not carried out on {graph.kind}; leave it out")
    if getattr(options, "full_range", None):
        raise ConfigError(f"{method.name}: full_range has negative scales, which LiteRT has not; leave it out")
    if needs_data(method) and isinstance(why := graph.vectors(graph.ops()[key]), str):
        raise ConfigError(f"op {key[0]!r}: {method.name} looks at inputs, and {why}; use rtn or hqq for it")


def needs_inputs(scheme: OpScheme) -> bool:
    """Whether the inputs of the op must have been seen to find its weight."""
    return scheme.mode == "weight_only" and scheme.method is not None and needs_data(scheme.method)


def find_weights(
    name: str, views: Mapping[str, Weight], scheme: OpScheme, seen: LayerInputs | None
) -> dict[str, LayerResult]:
    """The weights of the op called ``name`` quantized, by the name of the tensor."""
    assert scheme.weight is not None
    if scheme.mode != "weight_only" or scheme.method is None:
        return {tensor: LayerResult(quantize(view.matrix(), scheme.weight)) for tensor, view in views.items()}
    options = {option: value for option, value in scheme.method.options.items() if option not in _EXECUTED}
    if options.get("act_order"):
        options["static_groups"] = True  # so that inputs stay in their order
    known = options_of(scheme.method).names(executor=False)
    options |= {name: value for name, value in _IN_FILES.items() if name in known}
    statistics = None if seen is None else seen.statistics
    found = {}
    for tensor, view in views.items():
        result = ALGORITHMS[scheme.method.name](view.matrix(), scheme.weight, statistics, **options)
        if result.order is not None or result.rotation is not None or not isinstance(result.array, QuantizedArray):
            raise QuantizationError(
                f"{scheme.method.name} wants the inputs of {name!r} in another order, or zero points that are no "
                "integers, which no op of Keras or LiteRT has"
            )
        found[tensor] = result
    return found


def is_corrected(graph: FloatGraph, op: Any) -> bool:
    """Whether the bias of an op can take up the error of its weight."""
    return graph.channels_mixed(op) > 0 and graph.bias(op) is not None and len(graph.calls_of(op)) == 1


def corrected_bias(
    graph: FloatGraph, op: Any, result: LayerResult, inputs: ChannelMeans, outputs: ChannelVariance
) -> Array:
    """The bias less what the rounding of the weight adds to each output in the mean."""
    (view,) = graph.weights(op).values()
    error = np.asarray(result.dequantize()) - view.matrix()
    # Columns go over places of the kernel, then over input channels.
    laid_out = error.reshape(error.shape[0], -1, graph.channels_mixed(op)).transpose(0, 2, 1)
    errors = errors_of_means(laid_out, inputs.means)
    bias = graph.bias(op)
    assert bias is not None
    return np.asarray(bias - np.asarray(mean_error(errors, outputs.variance)), np.float32)
