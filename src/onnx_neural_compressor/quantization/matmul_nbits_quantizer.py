"""Matrix products with weights of a few bits."""

from neural_compressor.onnx.quantization.matmul_nbits_quantizer import *  # noqa: F403
from neural_compressor.onnx.quantization.matmul_nbits_quantizer import __all__  # noqa: F401
