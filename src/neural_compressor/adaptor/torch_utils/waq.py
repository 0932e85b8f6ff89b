"""SmoothQuant of a float model alone."""

from neural_compressor.torch.algorithms.smooth_quant import SQLinearWrapper, TorchSmoothQuant

__all__ = ["SQLinearWrapper", "TorchSmoothQuant"]
