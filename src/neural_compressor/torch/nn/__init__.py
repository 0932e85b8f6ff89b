"""The modules a quantized PyTorch model is made of."""

from neural_compressor.torch.nn.arithmetic import QuantAdd, QuantMatMul, QuantMul
from neural_compressor.torch.nn.base import QUANT_MODULES, QuantModule
from neural_compressor.torch.nn.build import quantized_module
from neural_compressor.torch.nn.conv import QuantConv1d, QuantConv2d, QuantConv3d
from neural_compressor.torch.nn.conv_transpose import QuantConvTranspose1d, QuantConvTranspose2d, QuantConvTranspose3d
from neural_compressor.torch.nn.embedding import QuantEmbedding
from neural_compressor.torch.nn.half import HalfModule
from neural_compressor.torch.nn.linear import QuantLinear
from neural_compressor.torch.nn.recurrent import QuantGRU, QuantLSTM
from neural_compressor.torch.nn.weight_only import WeightOnlyLinear

__all__ = [
    "QUANT_MODULES",
    "HalfModule",
    "QuantAdd",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConv3d",
    "QuantConvTranspose1d",
    "QuantConvTranspose2d",
    "QuantConvTranspose3d",
    "QuantEmbedding",
    "QuantGRU",
    "QuantLSTM",
    "QuantLinear",
    "QuantMatMul",
    "QuantModule",
    "QuantMul",
    "WeightOnlyLinear",
    "quantized_module",
]
