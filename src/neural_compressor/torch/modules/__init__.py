"""The modules a quantized PyTorch model is made of."""

from neural_compressor.torch.modules.arithmetic import QuantAdd, QuantMatMul, QuantMul
from neural_compressor.torch.modules.base import QUANT_MODULES, QuantModule
from neural_compressor.torch.modules.build import quantized_module
from neural_compressor.torch.modules.conv import (
    QuantConv1d,
    QuantConv2d,
    QuantConv3d,
    QuantConvTranspose1d,
    QuantConvTranspose2d,
    QuantConvTranspose3d,
)
from neural_compressor.torch.modules.embedding import QuantEmbedding, QuantEmbeddingBag
from neural_compressor.torch.modules.half import HalfModule
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.modules.recurrent import QuantGRU, QuantLSTM
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

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
    "QuantEmbeddingBag",
    "QuantGRU",
    "QuantLSTM",
    "QuantLinear",
    "QuantMatMul",
    "QuantModule",
    "QuantMul",
    "WeightOnlyLinear",
    "quantized_module",
]
