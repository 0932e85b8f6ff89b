"""The framework itself, which knows nothing of quantization: layers that are called one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(kw_only=True)
class Layer:
    """An op with a name."""

    name: str

    @property
    def op_type(self) -> str:
        return type(self).__name__

    def __call__(self, x: Array) -> Array:
        raise NotImplementedError


@dataclass(kw_only=True)
class Weighted(Layer):
    """A layer with a weight: an array, or something NumPy can make an array of."""

    weight: Any
    bias: Array


@dataclass(kw_only=True)
class Dense(Weighted):
    """``x @ weight.T + bias`` with a weight of shape (outputs, inputs)."""

    def __call__(self, x: Array) -> Array:
        return np.asarray(x @ np.asarray(self.weight).T + self.bias)


@dataclass(kw_only=True)
class Conv1D(Weighted):
    """A convolution of (batch, channels, length) with a weight of shape (outputs, channels, width)."""

    def __call__(self, x: Array) -> Array:
        weight = np.asarray(self.weight)
        windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[-1], axis=-1)
        return np.asarray(np.einsum("bclw,ocw->bol", windows, weight) + self.bias[:, None])


@dataclass(kw_only=True)
class Scale(Layer):
    """Each channel times a factor plus an offset: what is left of batch normalisation after training."""

    factor: Array
    offset: Array

    def __call__(self, x: Array) -> Array:
        return x * self.factor[:, None] + self.offset[:, None]


@dataclass(kw_only=True)
class Relu(Layer):
    """Negative values become zero."""

    def __call__(self, x: Array) -> Array:
        return np.maximum(x, 0)


@dataclass(kw_only=True)
class Flatten(Layer):
    """All axes but the first become one."""

    def __call__(self, x: Array) -> Array:
        return x.reshape(len(x), -1)


@dataclass
class Network:
    """A model: layers in the order they run."""

    layers: list[Layer] = field(default_factory=list)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)

    def add_layer(self, layer: Layer) -> None:
        """Append a layer."""
        self.layers.append(layer)

    def predict_on_batch(self, inputs: Any) -> Array:
        """The output for a batch of inputs."""
        x = np.asarray(inputs, dtype=np.float32)
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class DataLoader:
    """Batches of ``(inputs, labels)``."""

    inputs: Array
    labels: Array
    batch_size: int = 8

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for start in range(0, len(self.inputs), self.batch_size):
            yield self.inputs[start : start + self.batch_size], self.labels[start : start + self.batch_size]
