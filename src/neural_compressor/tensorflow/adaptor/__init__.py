"""Keras and TensorFlow behind the adaptor contract."""

from neural_compressor.tensorflow.adaptor.keras import KerasAdaptor
from neural_compressor.tensorflow.adaptor.saved_model import TensorFlowAdaptor

__all__ = ["KerasAdaptor", "TensorFlowAdaptor"]
