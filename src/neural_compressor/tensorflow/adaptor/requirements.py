"""A check of what has to be installed for Keras and TensorFlow models."""

from __future__ import annotations

from neural_compressor.errors import MissingDependencyError


def require_tensorflow() -> None:
    """Say which extra to install where TensorFlow is missing, or which backend Keras must have."""
    try:
        import ai_edge_litert
        import ai_edge_quantizer
        import keras
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{error}; install what Keras models need with: pip install 'open-neural-compressor[tensorflow]'"
        ) from error
    assert ai_edge_litert
    assert ai_edge_quantizer
    if keras.backend.backend() != "tensorflow":
        raise MissingDependencyError(
            f"Keras runs on {keras.backend.backend()} here, and models are quantized on TensorFlow: set "
            "KERAS_BACKEND=tensorflow"
        )
