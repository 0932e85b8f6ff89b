"""Calibration data for AutoRound."""

from neural_compressor.torch.algorithms.weight_only.autoround import get_dataloader

__all__ = ["get_dataloader"]
