"""Names in Hugging Face checkpoints: of some models transformers calls modules otherwise (``block_sparse_moe``: ``mlp``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


class StoredNames:
    """The names that checkpoints, and so serving engines, have for what a ``model`` of transformers calls by its own.

    Those of the model itself where one of them would not be had back, or where a layer's name is not the beginning of its
    tensors' names: some renamings are of tensors alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self._to_own: list[Any] = []
        self._to_stored: list[Any] = []
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
        except ImportError:  # earlier releases have the names of checkpoints
            return
        if not hasattr(model, "config"):
            return
        transforms = get_model_conversion_mapping(model, add_legacy=False)  # type: ignore[arg-type]
        renamings = [each for each in transforms if type(each).__name__ == "WeightRenaming"]
        self._to_own, self._to_stored = list(renamings), [each.reverse_transform() for each in reversed(renamings)]
        if not all(self._is_kept(name) for name in model.state_dict()):
            self._to_own, self._to_stored = [], []

    def _is_kept(self, tensor: str) -> bool:
        layer, dot, part = tensor.rpartition(".")
        names = [tensor, layer] if dot else [tensor]
        is_had_back = all(self.own(self.stored(name)) == name == self.own(name) for name in names)
        return is_had_back and self.stored(tensor) == f"{self.stored(layer)}{dot}{part}"

    def stored(self, name: str) -> str:
        """What a checkpoint calls it."""
        return _renamed(name, self._to_stored)

    def own(self, name: str) -> str:
        """What the model calls it."""
        return _renamed(name, self._to_own)


def _renamed(name: str, renamings: Iterable[Any]) -> str:
    for each in renamings:
        name, _ = each.rename_source_key(name)
    return name
