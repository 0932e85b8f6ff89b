"""Checkpoint formats: pure transforms between quantized linear layers and the tensors that files store."""

from neural_compressor.formats.awq import AWQ
from neural_compressor.formats.base import FORMATS, CheckpointFormat, Layer, format_of
from neural_compressor.formats.checkpoint_folder import (
    LayerCompression,
    RewrittenCheckpoint,
    new_folder,
    quantize_checkpoint,
)
from neural_compressor.formats.compressed_floats import FloatQuantized, MXFP4Packed, MXFP8Quantized, NVFP4Packed
from neural_compressor.formats.compressed_tensors import CompressedTensors, IntQuantized, PackQuantized
from neural_compressor.formats.fp8 import FP8
from neural_compressor.formats.gguf_blocks import GGUF
from neural_compressor.formats.gguf_file import write_gguf
from neural_compressor.formats.gguf_llama import export_llama_gguf
from neural_compressor.formats.gptq import GPTQ, GPTQv2
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.formats.modelopt import ModelOpt
from neural_compressor.formats.mxfp4_experts import MXFP4Experts
from neural_compressor.formats.quantized_checkpoint import QuantizedCheckpoint, quantization_config
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.safetensors_files import SafetensorsCheckpoint
from neural_compressor.formats.safetensors_writer import ShardWriter

__all__ = [
    "AWQ",
    "FORMATS",
    "FP8",
    "GGUF",
    "GPTQ",
    "CheckpointFormat",
    "CompressedTensors",
    "FloatQuantized",
    "GPTQv2",
    "IntQuantized",
    "Layer",
    "LayerCompression",
    "LinearSpec",
    "LinearWeight",
    "MXFP4Experts",
    "MXFP4Packed",
    "MXFP8Quantized",
    "ModelOpt",
    "NVFP4Packed",
    "PackQuantized",
    "QuantizedCheckpoint",
    "QuantizedLinear",
    "RewrittenCheckpoint",
    "SafetensorsCheckpoint",
    "ShardWriter",
    "export_llama_gguf",
    "format_of",
    "new_folder",
    "quantization_config",
    "quantize_checkpoint",
    "write_gguf",
]
