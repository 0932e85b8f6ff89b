"""Names in Hugging Face checkpoints: of some models transformers calls modules otherwise (``block_sparse_moe``: ``mlp``)."""

from __future__ import annotations

from torch import nn


class StoredNames:
    """The names that checkpoints, and so serving engines, have for what a ``model`` of transformers calls by its own.

    Those of the model itself where one of them would not be had back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._to_own: list[object] = []
        self._to_stored: list[object] = []
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
        except ImportError:  # earlier releases have the names of checkpoints
            return
        if not hasattr(model, "config"):
            return
        transforms = get_model_conversion_mapping(model, add_legacy=False)  # type: ignore[arg-type]
        renamings = [each for each in transforms if type(each).__name__ == "WeightRenaming"]
        self._to_own, self._to_stored = list(renamings), [each.reverse_transform() for each in reversed(renamings)]
        if any(self.own(self.stored(name)) != name for name in model.state_dict()):
            self._to_own, self._to_stored = [], []

    def stored(self, name: str) -> str:
        """What a checkpoint calls it."""
        return _renamed(name, self._to_stored)

    def own(self, name: str) -> str:
        """What the model calls it."""
        return _renamed(name, self._to_own)


def _renamed(name: str, renamings: list[object]) -> str:
    if not renamings:
        return name
    from transformers.core_model_loading import apply_renamings

    return apply_renamings(name, renamings)  # type: ignore[arg-type]
