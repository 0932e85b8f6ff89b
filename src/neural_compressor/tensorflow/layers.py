"""Keras layers that stand on the tensors of a graph: one that observes, one that quantizes and dequantizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from neural_compressor.schemes import PER_TOKEN, PerTensor, QParams, TensorScheme, fake_quantize
from neural_compressor.schemes.affine import integer_limits

_PACKAGE = "neural_compressor"
_HALVES = {"bf16": "bfloat16", "fp16": "float16"}


class FakeQuant(keras.layers.Layer):
    """Passes its input on and shows it to observers, also where the model runs as a compiled function."""

    supports_jit = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "trainable": False})
        self.supports_masking = True
        self._observers = _Hidden(())

    def show(self, observers: Sequence[Any]) -> None:
        """Have these, and no others, see what is passed on from now."""
        self._observers.value = observers

    def call(self, inputs: Any) -> Any:
        """The input itself, of whatever type it is."""
        return _in_numpy(self._observe, inputs, inputs.dtype)

    def _observe(self, array: Any) -> Any:
        for observer in self._observers.value:
            observer.update(array)
        return array


class _Hidden:
    """A value that Keras does not wrap when it becomes an attribute of a layer."""

    def __init__(self, value: Any) -> None:
        self.value = value


@keras.saving.register_keras_serializable(_PACKAGE)
class QuantizeDequantize(keras.layers.Layer):
    """Rounds its input to the values that a scheme can hold.

    ``qparams`` is the scale and zero point of a calibrated range; without them they follow from the values that share the
    ``axes`` (dynamic), or there are none (bf16, fp16).
    """

    supports_jit = False

    def __init__(
        self, scheme: TensorScheme | dict[str, Any], qparams: Any = None, axes: Sequence[int] = (), **kwargs: Any
    ) -> None:
        super().__init__(**{**kwargs, "trainable": False})
        self.supports_masking = True
        self.axes = tuple(axes)
        self.scheme = scheme if isinstance(scheme, TensorScheme) else TensorScheme.from_dict(scheme)
        self.qparams = qparams if isinstance(qparams, QParams | None) else qparams_from(qparams)

    def call(self, inputs: Any) -> Any:
        """The rounded input."""
        if self.scheme.dtype.name in _HALVES:
            # Not in NumPy: threads of TensorFlow flush the denormal numbers that the core's rounding goes through.
            return keras.ops.cast(keras.ops.cast(inputs, _HALVES[self.scheme.dtype.name]), "float32")
        plain = isinstance(self.scheme.granularity, PerTensor) and self.scheme.dtype.is_integer
        if plain and self.qparams is not None:
            low, high = integer_limits(self.scheme)
            scale = np.float32(np.asarray(self.qparams.scale))
            zero = np.float32(0 if self.qparams.zero_point is None else np.asarray(self.qparams.zero_point))
            steps = keras.ops.round(inputs / scale) + zero
            return (keras.ops.clip(steps, float(low), float(high)) - zero) * scale
        return _in_numpy(self._rounded, inputs)

    def _rounded(self, array: Any) -> Any:
        if not self.axes:
            return np.asarray(fake_quantize(array, self.scheme, self.qparams))
        order = [axis for axis in range(array.ndim) if axis not in self.axes] + list(self.axes)
        moved = array.transpose(order)
        rows = moved.reshape(-1, math.prod(array.shape[axis] for axis in self.axes))
        found = np.asarray(fake_quantize(rows, replace(self.scheme, granularity=PER_TOKEN)))
        return found.reshape(moved.shape).transpose(np.argsort(order))

    def get_config(self) -> dict[str, Any]:
        """Scheme and parameters as plain data."""
        stored = None if self.qparams is None else qparams_to(self.qparams)
        return {**super().get_config(), "scheme": self.scheme.to_dict(), "qparams": stored, "axes": self.axes}


def qparams_to(qparams: QParams) -> dict[str, Any]:
    """Scale and zero point as plain data."""
    fields = {"scale": qparams.scale, "zero_point": qparams.zero_point, "tensor_scale": qparams.tensor_scale}
    return {name: np.asarray(value).tolist() for name, value in fields.items() if value is not None}


def qparams_from(data: dict[str, Any]) -> QParams:
    """Read what :func:`qparams_to` writes."""
    kinds = {"scale": np.float32, "zero_point": np.int32, "tensor_scale": np.float32}
    read = {name: np.asarray(data[name], kind) for name, kind in kinds.items() if name in data}
    return QParams(read.get("scale"), read.get("zero_point"), read.get("tensor_scale"))


def _in_numpy(function: Any, inputs: Any, dtype: Any = tf.float32) -> Any:
    """``function`` of the values of a tensor, which it keeps the shape of."""
    if isinstance(inputs, keras.KerasTensor):
        return inputs
    out = tf.numpy_function(
        lambda array: np.asarray(function(array), tf.as_dtype(dtype).as_numpy_dtype), [inputs], dtype
    )
    out.set_shape(inputs.shape)
    return out
