"""Load what ``fit`` saved of a PyTorch model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor import quantization
from neural_compressor.errors import ConfigError

__all__ = ["load"]


def load(
    checkpoint_dir: str | Path,
    model: Any,
    history_cfg: None = None,
    *,
    dataloader: Any = None,
    weight_only: bool = False,
    layer_wise: bool = False,
) -> Any:
    """The quantized model in a folder; ``model`` is the float model it was made from.

    The folder says how it was quantized, and nothing has to run: what the other arguments say is known.
    """
    if history_cfg is not None:
        raise ConfigError("load: history_cfg is not read; give the folder of the model that save wrote")
    return quantization.load(checkpoint_dir, model)
