"""Models without weights, whose values are read when their turn comes."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from neural_compressor.config.process_options import DEFAULT_WORKSPACE
from neural_compressor.errors import ConfigError
from neural_compressor.torch.files.huggingface import load_empty_model
from neural_compressor.torch.files.streaming import WeightSource
from neural_compressor.torch.structure.ops import repeated_blocks

__all__ = ["LWQ_WORKSPACE", "load_empty_model", "load_first_layer_only"]

LWQ_WORKSPACE = f"{DEFAULT_WORKSPACE}/lwq_tmpdir"
"""A folder that programs know for what is unpacked of checkpoints; tensors are read where they are: nothing is put there."""


def load_first_layer_only(user_model: nn.Module, model_name: str | Path) -> None:
    """Read from the folder ``model_name`` what an empty model has before and behind its repeated blocks."""
    if not Path(model_name).is_dir():
        raise ConfigError(
            f"load_first_layer_only: {str(model_name)!r} is no folder here, and nothing is downloaded; give the model's"
        )
    WeightSource(model_name).fill(user_model, but=tuple(f"{block}." for block in repeated_blocks(user_model)))
