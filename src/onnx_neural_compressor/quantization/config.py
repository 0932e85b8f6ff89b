"""A configuration for each algorithm, and sets to tune over."""

from neural_compressor.onnx.quantization.config import *  # noqa: F403
from neural_compressor.onnx.quantization.config import __all__  # noqa: F401
