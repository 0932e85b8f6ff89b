"""Models without weights, whose values are read when their turn comes."""

from neural_compressor.torch.files.huggingface import load_empty_model

__all__ = ["load_empty_model"]
