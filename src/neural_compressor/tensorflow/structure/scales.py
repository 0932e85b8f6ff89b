"""Scales moved from the input of an op into what makes that input, where the product stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from neural_compressor.tensorflow.structure.ops import (
    CONVOLUTIONS,
    DEPTHWISE,
    Graph,
    bias_of,
    is_activation,
    type_of,
    weights_of,
)
from neural_compressor.tensorflow.structure.simplify import copy_of
from neural_compressor.tensorflow.structure.trace import rebuild

Array = np.ndarray[Any, Any]
SCALABLE = ("Dense", *CONVOLUTIONS, *DEPTHWISE)
"""Layers whose weights can take up a scale of each input channel."""


@keras.saving.register_keras_serializable("neural_compressor")
class InputScale(keras.layers.Layer):
    """Multiplies each channel with a factor: what smoothing leaves where nothing before it takes the factors up."""

    def __init__(self, factors: Any, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "trainable": False})
        self.factors = [float(each) for each in np.asarray(factors, np.float32)]

    def call(self, inputs: Any) -> Any:
        """The product."""
        return inputs * np.asarray(self.factors, np.float32)

    def get_config(self) -> dict[str, Any]:
        """The factors as plain data."""
        return {**super().get_config(), "factors": self.factors}


def input_reach(layer: Any) -> Array:
    """The largest magnitude of the weights that read each input channel."""
    kernel = np.abs(layer.kernel.numpy())
    return np.asarray(np.moveaxis(kernel, -2, 0).reshape(kernel.shape[-2], -1).max(1), np.float32)


def output_reach(layer: Any) -> Array:
    """The largest magnitude of the weights that make each output channel."""
    found: Array = np.abs(weights_of(layer)["kernel"].matrix()).max(1)
    return found


def scale_inputs(layer: Any, factors: Array) -> None:
    """Multiply the weights that read each input channel."""
    layer.kernel.assign(layer.kernel.numpy() * np.asarray(factors, np.float32)[:, None])


def maker_of(graph: Graph, tensor: Any) -> Any:
    """The layer that can take up factors of the channels of ``tensor``: it makes them for this consumer alone, through
    nothing but a ReLU, pooling and the like; None where there is none."""
    made = {id(t): node for node in graph.nodes for t in node.outputs}
    while graph.only_consumer(tensor) is not None and (node := made.get(id(tensor))) is not None:
        kind = type_of(node.operation)
        if len(graph.calls(node.operation)) != 1:
            return None
        if kind in SCALABLE or kind == "LayerNormalization":
            return node.operation if _takes_up(node.operation) else None
        if not (is_activation(node.operation, ("relu", "linear")) or kind in _HOMOGENEOUS):
            return None
        tensor = node.input_tensors[0]
    return None


_HOMOGENEOUS = (
    *(f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)),
    *(f"ZeroPadding{n}D" for n in (1, 2, 3)),
)
"""Layers that give twice as much for twice as much."""


def _takes_up(layer: Any) -> bool:
    if type_of(layer) == "LayerNormalization":
        return bool(layer.scale) and len(layer.gamma.shape) == 1
    return getattr(layer, "data_format", "channels_last") == "channels_last"


def scale_outputs(layer: Any, factors: Array) -> None:
    """Multiply what a layer gives, channel by channel."""
    factors = np.asarray(factors, np.float32)
    if type_of(layer) == "LayerNormalization":
        layer.gamma.assign(layer.gamma.numpy() * factors)
        if layer.center:
            layer.beta.assign(layer.beta.numpy() * factors)
        return
    view = weights_of(layer)["kernel"]
    view.assign(view.matrix() * factors[:, None])
    if (bias := bias_of(layer)) is not None:
        bias.assign(bias.numpy() * factors)


def with_scales(graph: Graph, scales: Mapping[str, Array]) -> Graph:
    """The graph with the inputs of ops, by name, multiplied by factors."""
    copies: dict[int, Any] = {}

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        if op.name in scales:
            args = (InputScale(scales[op.name], name=f"{op.name}{SUFFIX}")(args[0]), *args[1:])
        return copies.setdefault(id(op), copy_of(op))(*args, **kwargs)

    return Graph(rebuild(graph.model, call)) if scales else graph


def scales_in(model: Any) -> dict[str, list[float]]:
    """The factors that inputs of ops of a model are multiplied by, by the name of the op."""
    found = (layer for layer in model.layers if isinstance(layer, InputScale))
    return {layer.name.removesuffix(SUFFIX): layer.factors for layer in found}


SUFFIX = ".smooth"
"""What the name of the multiplication before an op ends in."""
