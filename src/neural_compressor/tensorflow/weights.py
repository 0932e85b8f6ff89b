"""The quantized weights of ops: found by the method of each scheme, and their biases corrected for what rounding does."""

from __future__ import annotations

from typing import Any

import numpy as np

from neural_compressor.algorithms import ALGORITHMS, LayerResult, errors_of_means, mean_error, needs_data, options_of
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import OpKey, OpScheme, QuantizedArray, quantize
from neural_compressor.tensorflow.statistics import ChannelMeans, ChannelVariance, LayerInputs, sees_inputs
from neural_compressor.tensorflow.structure.ops import CONVOLUTIONS, DEPTHWISE, bias_of, type_of, weights_of

Array = np.ndarray[Any, Any]
_EXECUTED = ("layer_wise",)
_CORRECTED = ("Dense", *CONVOLUTIONS, *DEPTHWISE)


def check_method(key: OpKey, scheme: OpScheme, layer: Any) -> None:
    """Refuse a method, or an option of one, that is not carried out here."""
    method = scheme.method
    if method is None or scheme.weight is None:
        return
    algorithm, options = ALGORITHMS[method.name], options_of(method)
    if algorithm.quantize is None:
        raise ConfigError(f"{method.name} trains whole blocks of a model, which is not done on Keras models; use gptq")
    for name in options.names(executor=True):
        if name in options.distinct() and name not in _EXECUTED:
            raise ConfigError(f"{method.name}: {name} is not carried out on Keras models; leave it out")
    if needs_data(method) and (why := sees_inputs(layer)):
        raise ConfigError(f"op {key[0]!r}: {method.name} looks at inputs, and {why}; use rtn or hqq for it")


def needs_inputs(scheme: OpScheme) -> bool:
    """Whether the inputs of the op must have been seen to find its weight."""
    return scheme.mode == "weight_only" and scheme.method is not None and needs_data(scheme.method)


def find_weights(layer: Any, scheme: OpScheme, seen: LayerInputs | None) -> dict[str, LayerResult]:
    """The weights of a layer quantized, by the name of the tensor."""
    assert scheme.weight is not None
    views = weights_of(layer)
    if scheme.mode != "weight_only" or scheme.method is None:
        return {name: LayerResult(quantize(view.matrix(), scheme.weight)) for name, view in views.items()}
    options = {name: value for name, value in scheme.method.options.items() if name not in _EXECUTED}
    if options.get("act_order"):
        options["static_groups"] = True  # so that inputs stay in their order
    if scheme.method.name == "hqq":
        options["integer_zero"] = True
    statistics = None if seen is None else seen.statistics
    found = {}
    for name, view in views.items():
        result = ALGORITHMS[scheme.method.name](view.matrix(), scheme.weight, statistics, **options)
        if result.order is not None or result.rotation is not None or not isinstance(result.array, QuantizedArray):
            raise QuantizationError(
                f"{scheme.method.name} wants the inputs of {layer.name!r} in another order, or zero points that are no "
                "integers, which no layer of Keras has"
            )
        found[name] = result
    return found


def is_corrected(layer: Any) -> bool:
    """Whether the bias of a layer can take up the error of its weight."""
    plain = type_of(layer) in _CORRECTED and getattr(layer, "data_format", "channels_last") == "channels_last"
    return plain and bias_of(layer) is not None


def corrected_bias(layer: Any, result: LayerResult, inputs: ChannelMeans, outputs: ChannelVariance) -> Array:
    """The bias less what the rounding of the weight adds to each output in the mean."""
    view = weights_of(layer)["kernel"]
    error = np.asarray(result.dequantize()) - view.matrix()
    channels = 1 if type_of(layer) in DEPTHWISE else inputs.means.shape[1] // getattr(layer, "groups", 1)
    # Columns go over places of the kernel, then over input channels.
    laid_out = error.reshape(error.shape[0], -1, channels).transpose(0, 2, 1)
    errors = errors_of_means(laid_out, inputs.means)
    bias: Array = bias_of(layer).numpy()
    return np.asarray(bias - np.asarray(mean_error(errors, outputs.variance)), np.float32)
