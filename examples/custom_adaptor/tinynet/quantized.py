"""The layers quantization adds: one that watches, two that quantize and dequantize, and weights kept as codes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neural_compressor.observers import Observer
from neural_compressor.schemes import OpScheme, Plan, QParams, QuantizedArray, TensorScheme, quantize, quantize_with
from tinynet.network import Array, Layer, Network


@dataclass(kw_only=True)
class FakeQuant(Layer):
    """Stands before a layer during calibration: passes its input on and keeps the range of what it saw."""

    observer: Observer

    def __call__(self, x: Array) -> Array:
        self.observer.update(x)
        return x


@dataclass(kw_only=True)
class Quantize(Layer):
    """Float to codes: with the calibrated parameters, or with those of the batch where there are none (dynamic)."""

    scheme: TensorScheme
    qparams: QParams | None

    def __call__(self, x: Array) -> Any:
        return quantize(x, self.scheme) if self.qparams is None else quantize_with(x, self.scheme, self.qparams)


@dataclass(kw_only=True)
class DeQuantize(Layer):
    """Codes to float."""

    def __call__(self, x: Any) -> Array:
        return np.asarray(x.dequantize())


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight kept as codes; NumPy sees the values they stand for."""

    array: QuantizedArray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array.dequantize(), dtype=dtype)


@dataclass
class QuantizedNetwork(Network):
    """A network with quantized layers, and the plan it was made by."""

    plan: Plan = field(default_factory=Plan)


def quantize_layers(network: Network, plan: Plan, qparams: Mapping[str, QParams]) -> QuantizedNetwork:
    """A network with the ops of ``plan`` quantized; ``qparams``, by op name, are of their static inputs."""
    result = QuantizedNetwork(plan=plan)
    schemes = {name: scheme for (name, _), scheme in plan.items()}
    for layer in network:
        scheme = schemes.get(layer.name, OpScheme())
        if scheme.activation is not None and scheme.activation.dtype.name != "fp32":
            activation = Quantize(name=f"{layer.name}.input", scheme=scheme.activation, qparams=qparams.get(layer.name))
            result.add_layer(activation)
            result.add_layer(DeQuantize(name=f"{layer.name}.dequantize"))
        result.add_layer(copy.deepcopy(layer))
        if scheme.weight is not None and scheme.weight.dtype.name != "fp32":
            result.layers[-1].weight = QuantizedWeight(quantize(layer.weight, scheme.weight))
    return result
