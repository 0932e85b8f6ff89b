"""Weights that come from a checkpoint when their turn comes, so that a model larger than memory can be quantized."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.formats import SafetensorsCheckpoint
from neural_compressor.torch.modules.base import is_finite
from neural_compressor.tuning.memory import give_back_freed_memory


def is_empty(model: nn.Module) -> bool:
    """Whether the model has parameters without storage."""
    return any(p.is_meta for p in model.parameters())


def home_of(model: nn.Module) -> str:
    """The folder that a model of transformers was made from; empty where it does not know one."""
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


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
            if not is_finite(filled):
                raise FormatError(f"{self._tensors.files[name]}: tensor {name!r} holds NaN or Inf; all must be finite")
            model.get_submodule(owner)._parameters[own] = filled

    def finish(self, model: nn.Module) -> None:
        """Tie what is tied, and refuse a model with parameters still missing."""
        tie = getattr(model, "tie_weights", None)
        if callable(tie):
            tie()
        missing = [name for name, p in model.named_parameters() if p.is_meta]
        if missing:
            raise FormatError(f"{self.folder} has no tensors for {missing[:5]} of a {type(model).__name__}")


def empty_weight(layer: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Leave the shape of a layer's weight, and the type or another."""
    like = torch.empty_like(layer.get_parameter("weight"), device="meta", dtype=dtype)
    layer.weight = nn.Parameter(like, requires_grad=False)


class BlockWeights:
    """The weights of ``layers``, all that are to be quantized of a block, which come from ``source``.

    Where the block multiplies in bfloat16 (``amp``) it is run with weights read as bfloat16: it is what they would be
    rounded to at every call.
    """

    def __init__(self, model: nn.Module, source: WeightSource, block: str, layers: Sequence[str], amp: bool) -> None:
        self._model, self._source, self._prefix, self._amp = model, source, f"{block}." if block else "", amp
        self._dtypes = {name: model.get_submodule(name).get_parameter("weight").dtype for name in layers}

    def read(self) -> None:
        """Read what is missing for a run of the block."""
        for name, dtype in self._dtypes.items():
            layer = self._model.get_submodule(name)
            if layer.get_parameter("weight").is_meta:
                empty_weight(layer, torch.bfloat16 if self._amp and dtype == torch.float32 else dtype)
        self._source.fill(self._model, self._prefix)

    def widen(self, name: str) -> None:
        """Have the weight of a layer in the type it is stored in, beside the others."""
        layer, dtype = self._model.get_submodule(name), self._dtypes[name]
        if layer.get_parameter("weight").dtype != dtype:
            empty_weight(layer, dtype)
            self._source.fill(self._model, f"{name}." if name else "")

    def keep(self, names: Collection[str] = ()) -> None:
        """Have the weights of ``names`` in the type they are stored in, and no others."""
        for name, dtype in self._dtypes.items():
            layer = self._model.get_submodule(name)
            if name not in names or layer.get_parameter("weight").dtype != dtype:
                empty_weight(layer, dtype)
        for name in names:
            self._source.fill(self._model, f"{name}." if name else "")
