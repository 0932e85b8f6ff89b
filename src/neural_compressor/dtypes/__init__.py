"""Data types as frozen values in a registry."""

from neural_compressor.dtypes.base import Binades, DType
from neural_compressor.dtypes.block import BlockType
from neural_compressor.dtypes.catalogue import DTYPES, bf16, dtype, fp16, fp32, register_dtype
from neural_compressor.dtypes.codebook import CodebookType
from neural_compressor.dtypes.integer import IntType
from neural_compressor.dtypes.minifloat import FloatType

__all__ = [
    "DTYPES",
    "Binades",
    "BlockType",
    "CodebookType",
    "DType",
    "FloatType",
    "IntType",
    "bf16",
    "dtype",
    "fp16",
    "fp32",
    "register_dtype",
]
