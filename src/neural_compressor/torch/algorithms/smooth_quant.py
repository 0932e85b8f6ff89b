"""Names that programs written for the 3.x API import from here; the algorithm is a pass in ``torch/passes/smooth.py``."""

from neural_compressor.torch.utils.utility import move_input_to_device

__all__ = ["move_input_to_device"]
