"""The float weights of a block of a model larger than memory: there while they are used, and as small as they can be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

from neural_compressor.torch.files.streaming import WeightSource


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
