"""The framework YAML of eager PyTorch on CPU."""

from __future__ import annotations

from pathlib import Path

import torch

import neural_compressor.adaptor
from neural_compressor.adaptor.query import QueryBackendCapability

YAML = Path(neural_compressor.adaptor.__file__).with_name("pytorch_cpu.yaml")


class PyTorchQuery(QueryBackendCapability):
    """Reads ``adaptor/pytorch_cpu.yaml``, with a user's file laid over it."""

    def __init__(self, overlay: str | Path | None = None) -> None:
        super().__init__(YAML, torch.__version__.split("+", maxsplit=1)[0], overlay=overlay)

    def quantizable_types(self) -> set[str]:
        """Op types with a quantized option in any precision and mode."""
        capability = self.get_quantization_capability()
        return {op_type for modes in capability.values() for ops in modes.values() for op_type in ops}
