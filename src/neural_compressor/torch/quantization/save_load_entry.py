"""The path by which existing programs import :func:`save` and :func:`load`."""

from neural_compressor.torch.quantization.saving import load, save

__all__ = ["load", "save"]
