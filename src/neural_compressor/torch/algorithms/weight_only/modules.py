"""Layers with packed weights."""

from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules import WeightOnlyLinear as INCWeightOnlyLinear

__all__ = ["INCWeightOnlyLinear", "WeightOnlyLinear"]
