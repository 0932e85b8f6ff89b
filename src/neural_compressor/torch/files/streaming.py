"""Weights that come from a checkpoint when their turn comes, so that a model larger than memory can be quantized."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.formats import SafetensorsCheckpoint


def is_empty(model: nn.Module) -> bool:
    """Whether the model has parameters without storage."""
    return any(p.is_meta for p in model.parameters())


def give_back_freed_memory() -> None:
    """Return to the system what was freed: the C library of Linux keeps it for the next allocation, piece by piece."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class WeightSource:
    """Fills parameters on the meta device from the safetensors of a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._tensors = SafetensorsCheckpoint(folder)
        self._names = set(self._tensors)

    def fill(self, model: nn.Module, prefix: str = "", but: tuple[str, ...] = ()) -> None:
        """Read every empty parameter under ``prefix``, but those under the prefixes ``but``.

        Of the whole model a parameter that the checkpoint does not have stays empty: it may be tied to another.
        """
        give_back_freed_memory()
        for name, parameter in list(model.named_parameters()):
            if not parameter.is_meta or not name.startswith(prefix) or name.startswith(but):
                continue
            if name not in self._names:
                if prefix:
                    raise FormatError(
                        f"{self.folder} has no tensor {name!r}: it is tied to another, or stored in parts or under another "
                        "name, as experts are; load the whole model to quantize it"
                    )
                continue
            tensor: torch.Tensor = self._tensors[name]
            if tensor.shape != parameter.shape:
                raise FormatError(
                    f"{self.folder}: {name!r} has shape {tuple(tensor.shape)}, the model wants {tuple(parameter.shape)}"
                )
            owner, _, own = name.rpartition(".")
            filled = nn.Parameter(tensor.to(parameter.dtype), requires_grad=False)
            model.get_submodule(owner)._parameters[own] = filled

    def finish(self, model: nn.Module) -> None:
        """Tie what is tied, and refuse a model with parameters still missing."""
        tie = getattr(model, "tie_weights", None)
        if callable(tie):
            tie()
        missing = [name for name, p in model.named_parameters() if p.is_meta]
        if missing:
            raise FormatError(f"{self.folder} has no tensors for {missing[:5]} of a {type(model).__name__}")
