"""Load what ``fit`` saved of a PyTorch model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor import quantization

__all__ = ["load"]


def load(checkpoint_dir: str | Path, model: Any) -> Any:
    """The quantized model in a folder; ``model`` is the float model it was made from."""
    return quantization.load(checkpoint_dir, model)
