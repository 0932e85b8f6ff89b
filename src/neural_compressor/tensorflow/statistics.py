"""Statistics of the tensors of a graph while calibration data runs, for passes and methods; sums, not tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from neural_compressor.algorithms import InputStatistics
from neural_compressor.tensorflow.structure.ops import CONVOLUTIONS, einsum_letters, type_of

Array = np.ndarray[Any, Any]
_MOST = 4096
"""Samples after whose batch no more means are kept."""


class ChannelMeans:
    """The mean of each channel of each sample, of the first samples."""

    def __init__(self) -> None:
        self._count = 0
        self._rows: list[Array] = []

    def update(self, x: Array) -> None:
        """Take a batch into account."""
        if self._count < _MOST:
            self._rows.append(_by_sample(x).mean(1, dtype=np.float32))
            self._count += len(x)

    @property
    def means(self) -> Array:
        """One row a sample."""
        return np.concatenate(self._rows)


class ChannelVariance:
    """The variance of each channel over places and samples."""

    def __init__(self) -> None:
        self._count, self._sum, self._square = 0, np.zeros(()), np.zeros(())

    def update(self, x: Array) -> None:
        """Take a batch into account."""
        flat = _by_sample(x)
        self._count += flat.shape[0] * flat.shape[1]
        self._sum = self._sum + flat.mean((0, 1), dtype=np.float32).astype(np.float64) * flat.shape[0] * flat.shape[1]
        self._square = self._square + np.einsum("nsc,nsc->c", flat, flat).astype(np.float64)

    @property
    def variance(self) -> Array:
        """One value a channel."""
        found = self._square / self._count - (self._sum / self._count) ** 2
        return np.asarray(np.maximum(found, 0), np.float32)


def _by_sample(x: Array) -> Array:
    return np.asarray(x, np.float32).reshape(x.shape[0], -1, x.shape[-1])


class ChannelReach:
    """The largest magnitude of each channel."""

    def __init__(self) -> None:
        self.reach: Array | None = None

    def update(self, x: Array) -> None:
        """Take a batch into account."""
        found = np.abs(np.asarray(x)).reshape(-1, x.shape[-1]).max(0)
        self.reach = found if self.reach is None else np.maximum(self.reach, found)


class LayerInputs:
    """Second moments of the vectors that an op multiplies its matrix with, which ``vectors`` makes of its inputs."""

    def __init__(self, vectors: Callable[[Array], Array]) -> None:
        self._vectors = vectors
        self.statistics = InputStatistics()

    def update(self, x: Array) -> None:
        """Take a batch into account."""
        self.statistics.update(self._vectors(np.asarray(x, np.float32)))


class Kept:
    """The tensors themselves, for whoever wants to look at them."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def update(self, x: Array) -> None:
        """Take a batch into account."""
        self._arrays.append(np.array(x))

    def taken(self) -> Array:
        """What came since this was asked before, which may have been in several runs."""
        arrays, self._arrays = self._arrays, []
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def row_vectors(x: Array) -> Array:
    """What a matrix product multiplies with."""
    return x.reshape(-1, x.shape[-1])


def patch_vectors(x: Array, sizes: Any, strides: Any, rates: Any, padding: str) -> Array:
    """What a convolution of images multiplies with: its patches; ``padding`` is SAME or VALID."""
    patches = tf.image.extract_patches(x, [1, *sizes, 1], [1, *strides, 1], [1, *rates, 1], padding)
    found: Array = patches.numpy().reshape(-1, patches.shape[-1])
    return found


def layer_vectors(layer: Any) -> Callable[[Array], Array] | str:
    """What makes of the inputs of a Keras layer the vectors of its matrix, or why there are none."""
    kind = type_of(layer)
    if kind == "Dense":
        return row_vectors
    if kind == "EinsumDense":
        if not _einsum_is_product(layer.equation):
            return f"its equation {layer.equation!r} is no matrix product"
        return lambda x: _einsum_vectors(x, layer.equation)
    if kind not in CONVOLUTIONS[:2]:
        return f"the inputs of a {kind} are no vectors of its matrix"
    if getattr(layer, "groups", 1) != 1 or layer.data_format != "channels_last":
        return "it is grouped, or has channels first"
    return lambda x: _layer_patches(x, layer)


def _layer_patches(x: Array, layer: Any) -> Array:
    sizes, strides, rates = layer.kernel_size, layer.strides, layer.dilation_rate
    if len(sizes) == 1:
        x, sizes, strides, rates = x[:, None], (1, *sizes), (1, *strides), (1, *rates)
    if layer.padding == "causal":
        x = np.pad(x, ((0, 0), (0, 0), ((sizes[1] - 1) * rates[1], 0), (0, 0)))
    return patch_vectors(x, sizes, strides, rates, "SAME" if layer.padding == "same" else "VALID")


def _einsum_is_product(equation: str) -> bool:
    given, kernel, output = einsum_letters(equation)
    summed = [letter for letter in kernel if letter not in output]
    # What is summed over must be what the input ends in, in the same order, and nothing of the kernel a batch of both.
    return given.endswith("".join(summed)) and not any(letter in given for letter in kernel if letter in output)


def _einsum_vectors(x: Array, equation: str) -> Array:
    _, kernel, output = einsum_letters(equation)
    summed = [letter for letter in kernel if letter not in output]
    return x.reshape(-1, int(np.prod(x.shape[x.ndim - len(summed) :])))
