"""TensorFlow and Keras 3: models quantized on the core, as Keras models and as files for LiteRT.

Names are looked up when they are asked for, so that asking whether a model is a Keras one imports no TensorFlow.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "DynamicQuantConfig",
    "Model",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TuningConfig",
    "autotune",
    "get_all_config_set",
    "get_default_sq_config",
    "get_default_static_quant_config",
    "quantize_model",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from neural_compressor.tensorflow import quantization

        return getattr(quantization, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
