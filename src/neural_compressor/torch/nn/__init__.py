"""The modules a quantized PyTorch model is made of."""

from neural_compressor.torch.nn.base import QUANT_MODULES, QuantModule
from neural_compressor.torch.nn.build import quantized_module
from neural_compressor.torch.nn.conv import QuantConv1d, QuantConv2d, QuantConv3d
from neural_compressor.torch.nn.half import HalfModule
from neural_compressor.torch.nn.linear import QuantLinear

__all__ = [
    "QUANT_MODULES",
    "HalfModule",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConv3d",
    "QuantLinear",
    "QuantModule",
    "quantized_module",
]
