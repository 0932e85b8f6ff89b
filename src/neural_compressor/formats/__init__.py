"""Checkpoint formats: pure transforms between quantized linear layers and the tensors that files store."""

from neural_compressor.formats.awq import AWQ
from neural_compressor.formats.base import FORMATS, CheckpointFormat, format_of
from neural_compressor.formats.compressed_tensors import IntQuantized, PackQuantized
from neural_compressor.formats.gptq import GPTQ, GPTQv2
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight

__all__ = [
    "AWQ",
    "FORMATS",
    "GPTQ",
    "CheckpointFormat",
    "GPTQv2",
    "IntQuantized",
    "LinearSpec",
    "LinearWeight",
    "PackQuantized",
    "format_of",
]
