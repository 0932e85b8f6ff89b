"""Keras and TensorFlow behind the adaptor contract."""

from neural_compressor.tensorflow.adaptor.keras import KerasAdaptor

__all__ = ["KerasAdaptor"]
