"""Checkpoint formats: pure transforms between quantized linear layers and the tensors that files store."""

from neural_compressor.formats.awq import AWQ
from neural_compressor.formats.base import FORMATS, CheckpointFormat, format_of
from neural_compressor.formats.checkpoint_folder import (
    LayerCompression,
    RewrittenCheckpoint,
    new_folder,
    quantize_checkpoint,
)
from neural_compressor.formats.compressed_tensors import IntQuantized, PackQuantized
from neural_compressor.formats.gguf_blocks import GGUF
from neural_compressor.formats.gguf_file import write_gguf
from neural_compressor.formats.gguf_llama import export_llama_gguf
from neural_compressor.formats.gptq import GPTQ, GPTQv2
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.formats.quantized_checkpoint import QuantizedCheckpoint, quantization_config
from neural_compressor.formats.safetensors_files import SafetensorsCheckpoint
from neural_compressor.formats.safetensors_writer import ShardWriter

__all__ = [
    "AWQ",
    "FORMATS",
    "GGUF",
    "GPTQ",
    "CheckpointFormat",
    "GPTQv2",
    "IntQuantized",
    "LayerCompression",
    "LinearSpec",
    "LinearWeight",
    "PackQuantized",
    "QuantizedCheckpoint",
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
