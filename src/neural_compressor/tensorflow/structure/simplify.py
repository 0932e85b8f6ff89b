"""The inference form of a Keras graph, which is what plans name the ops of.

Dropout and the like are gone, activation functions are layers of their own, separable convolutions are two, the products of
attention are operations of their own, and batch normalisation or a factor behind a convolution or matrix product is folded
into it. Layers are copies; the user's stay as they are.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from neural_compressor.errors import QuantizationError
from neural_compressor.tensorflow.structure.ops import (
    CONVOLUTIONS,
    DEPTHWISE,
    TRANSPOSED,
    Graph,
    WeightView,
    bias_of,
    type_of,
    weights_of,
)
from neural_compressor.tensorflow.structure.trace import names_of, rebuild, trace

_DROPPED = ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianDropout", "GaussianNoise",
            "AlphaDropout", "ActivityRegularization", "Identity")  # fmt: skip
_FOLDABLE = ("Dense", *CONVOLUTIONS, *DEPTHWISE, *TRANSPOSED)
_SEPARABLE = {"SeparableConv1D": ("DepthwiseConv1D", "Conv1D"), "SeparableConv2D": ("DepthwiseConv2D", "Conv2D")}


def simplify(model: Any) -> Graph:
    """``model`` in inference form."""
    flat = trace(model)
    graph = Graph(flat)
    copies = _Copies(graph, names_of(model))
    return Graph(rebuild(flat, copies.call, name=model.name))


class _Copies:
    """Makes the layers of the new graph."""

    def __init__(self, graph: Graph, names: dict[int, str]) -> None:
        self.graph, self._names = graph, names
        self._made: dict[int, list[Any]] = {}
        self._taken: Counter[str] = Counter()
        self._folded = {id(conv.operation): norm for conv, norm in _folds(graph)}
        factors = list(_factors(graph))
        self._factors = {id(node.operation): factor for node, _, factor in factors}
        self._gone = {id(norm) for norm in self._folded.values()} | {id(op) for _, op, _ in factors}

    def call(self, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What stands for ``node`` in the new graph."""
        op, kind = node.operation, type_of(node.operation)
        if kind in _DROPPED or id(op) in self._gone:
            return next(each for each in args if isinstance(each, keras.KerasTensor))
        if kind == "DotProductAttention" and not op.attn_logits_soft_cap:
            return _attention(op, self._name(op), *args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name != "training"}
        if id(op) not in self._made:
            self._made[id(op)] = self._copy(op, args)
        first, *others = self._made[id(op)]
        out = first(*args, **kwargs)
        for other in others:
            out = other(out)
        return out

    def _name(self, op: Any) -> str:
        """Operations that are no layers are numbered here: Keras counts them for the whole process."""
        base = self._names.get(id(op), op.name)
        if not isinstance(op, keras.Layer):
            base = re.sub(r"(?<!^)(?=[A-Z])", "_", type_of(op)).lower()
        self._taken[base] += 1
        return base if self._taken[base] == 1 else f"{base}_{self._taken[base] - 1}"

    def _copy(self, op: Any, args: tuple[Any, ...]) -> list[Any]:
        name = self._name(op)
        if type_of(op) in _SEPARABLE:
            layers = _separated(op, name, args)
        else:
            layers = [copy_of(op, name, {"activation": "linear"} if _splits(op) else {})]
        if id(op) in self._factors:
            layers[0].set_weights([weight * self._factors[id(op)] for weight in layers[0].get_weights()])
        norm = self._folded.get(id(op))
        if norm is not None:
            layers[-1] = _with_norm(layers[-1], norm)
        activation = getattr(op, "activation", None)
        if _splits(op):
            shown = re.sub(r"\W", "_", getattr(activation, "__name__", type(activation).__name__))
            layers.append(keras.layers.Activation(activation, name=f"{name}.{shown}"))
        return layers


def _splits(op: Any) -> bool:
    linear = getattr(op, "activation", None) in (None, keras.activations.linear)
    return not linear and type_of(op) in (*_FOLDABLE, "EinsumDense", *_SEPARABLE)


def copy_of(op: Any, name: str | None = None, changes: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """An operation of the same class, configuration and weights that is in no graph yet."""
    name = name or op.name
    if not isinstance(op, keras.Layer):
        new = copy.copy(op)
        new.name, new._inbound_nodes, new._outbound_nodes = name, [], []
        return new
    config = {**op.get_config(), "name": name, **changes}
    try:
        new = type(op).from_config(config)
    except Exception as error:  # a class of a user
        raise QuantizationError(
            f"the layer {op.name!r} ({type(op).__name__}) cannot be copied from its get_config(): {error}; "
            "give the class a get_config() with the arguments of its __init__"
        ) from error
    if op.built and not new.built and (shapes := op.get_build_config()):
        new.build_from_config(shapes)
    if op.weights:
        new.set_weights(op.get_weights())
    new.trainable = False
    return new


def _separated(op: Any, name: str, args: tuple[Any, ...]) -> list[Any]:
    depthwise, pointwise = (getattr(keras.layers, kind) for kind in _SEPARABLE[type_of(op)])
    first = depthwise(
        op.kernel_size,
        strides=op.strides,
        padding=op.padding,
        dilation_rate=op.dilation_rate,
        depth_multiplier=op.depth_multiplier,
        data_format=op.data_format,
        use_bias=False,
        name=f"{name}.depthwise",
    )
    second = pointwise(op.filters, 1, data_format=op.data_format, use_bias=op.use_bias, name=f"{name}.pointwise")
    first.build(args[0].shape)
    second.build(first.compute_output_shape(args[0].shape))
    weights = op.get_weights()
    first.set_weights(weights[:1])
    second.set_weights(weights[1:])
    return [first, second]


def _folds(graph: Graph) -> list[tuple[Any, Any]]:
    """The nodes whose outputs go to nothing but a batch normalisation, with that."""
    found = []
    for node in graph.nodes:
        op = node.operation
        following = graph.only_consumer(node.outputs[0])
        if following is None or type_of(following.operation) != "BatchNormalization":
            continue
        able = type_of(op) in (*_FOLDABLE, *_SEPARABLE) and not _splits(op) and _channels_last(op)
        rank = len(node.outputs[0].shape)
        norm = following.operation
        alone = len(graph.calls(op)) == len(graph.calls(norm)) == 1
        if able and alone and norm.axis in (-1, rank - 1):
            found.append((node, norm))
    return found


def _factors(graph: Graph) -> Iterator[tuple[Any, Any, np.float32]]:
    """The nodes whose outputs go to nothing but a multiplication with a number, with that, and the number. The converter
    puts it into the weight, which would then not be the one that was quantized."""
    for node in graph.nodes:
        op, following = node.operation, graph.only_consumer(node.outputs[0])
        if following is None or type_of(following.operation) != "Multiply" or len(following.input_tensors) != 1:
            continue
        able = type_of(op) in (*_FOLDABLE, "EinsumDense") and not _splits(op)
        numbers = [each for each in following.arguments.args if not isinstance(each, keras.KerasTensor)]
        alone = len(graph.calls(op)) == len(graph.calls(following.operation)) == 1
        if able and alone and len(numbers) == 1 and np.size(numbers[0]) == 1:
            yield node, following.operation, np.float32(np.asarray(numbers[0]).reshape(()))


def _attention(op: Any, name: str, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None,
               scale: Any = None) -> Any:  # fmt: skip
    """``DotProductAttention`` as its two products, of scores and of values, and what is between them."""
    ops = keras.ops

    def named(tensor: Any, part: str) -> Any:
        tensor._keras_history.operation.name = f"{name}.{part}"
        return tensor

    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key = named(ops.repeat(key, groups, axis=2), "keys")
        value = named(ops.repeat(value, groups, axis=2), "repeated_values")
    factor = 1 / math.sqrt(key.shape[-1]) if scale is None else scale
    scores = named(ops.einsum("btnh,bsnh->bnts", query, key), "scores")
    scores = named(ops.multiply(scores, factor), "scale")
    if bias is not None:
        scores = named(ops.add(scores, bias), "bias")
    lowest = float(np.finfo(np.float32).min) * 0.7
    if mask is not None:
        scores = named(ops.where(mask, scores, lowest), "mask")
    if op.is_causal:
        ones = named(ops.ones_like(scores), "ones")  # lengths may not be known here
        places = [named(ops.cumsum(ones, axis=axis), f"places{axis}") for axis in (2, 3)]
        visible = named(ops.greater_equal(*places), "visible")
        scores = named(ops.where(visible, scores, lowest), "causal")
    weights = named(ops.softmax(scores, axis=-1), "softmax")
    return named(ops.einsum("bnts,bsnh->btnh", weights, value), "values")


def _channels_last(op: Any) -> bool:
    return getattr(op, "data_format", "channels_last") == "channels_last"


def _with_norm(layer: Any, norm: Any) -> Any:
    """``layer`` with a bias, and the factors and offsets of a batch normalisation in its weights."""
    weights = dict(zip([w.name for w in norm.weights], norm.get_weights(), strict=True))
    mean, variance = weights["moving_mean"], weights["moving_variance"]
    factor = weights.get("gamma", np.ones_like(mean)) / np.sqrt(variance + norm.epsilon)
    offset = weights.get("beta", np.zeros_like(mean)) - mean * factor
    bias = bias_of(layer)
    if bias is None:
        config = {**layer.get_config(), "use_bias": True}
        new = type(layer).from_config(config)
        new.build_from_config(layer.get_build_config())
        new.set_weights([*layer.get_weights(), offset])
        layer = new
    else:
        bias.assign(bias.numpy() * factor + offset)
    view: WeightView = weights_of(layer)["kernel"]
    view.assign(view.matrix() * factor.reshape(-1)[:, None])
    return layer
