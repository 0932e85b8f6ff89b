"""Find the normalisation whose output only some layers read, so that a scale of their input can go into its weight."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.structure.feeds import feeds
from neural_compressor.torch.structure.norm_form import follows_weight, scaled_vectors
from neural_compressor.torch.structure.replay import Arguments, call_block
from neural_compressor.torch.structure.watch import watch


def absorbing_norm(
    block: nn.Module, layers: Collection[str], call: Arguments, prefix: str, amp: bool = False
) -> nn.Module | None:
    """The module of ``block`` that can take up a scale of the input of ``layers``, found by running ``call`` once.

    It has a vector for a weight, is called once, and nothing but ``layers`` reads what it returns. That its output follows
    its weight is not taken from its name but tried.
    """
    trace = watch(block, call, run=lambda: call_block(block, call, amp))
    inside = {name.removeprefix(prefix) for name in layers}
    found = [feed for feed in feeds(block, [trace], inside) if set(feed.readers) == inside and feed.capped_by is None]
    norm = block.get_submodule(found[0].source) if found and found[0].source is not None else None
    return norm if norm is not None and follows_weight(norm) else None


def named_norm(model: nn.Module, name: str) -> nn.Module:
    """The module ``name``, which must be able to take up a scale of its outputs."""
    norm = model.get_submodule(name)
    if not follows_weight(norm):
        raise ConfigError(
            f"{name!r} ({type(norm).__name__}) cannot take up a scale: dividing a vector in its weight must divide its "
            "output; name a normalisation, or take folding=False to have the scale applied at run time"
        )
    return norm


@torch.no_grad()
def absorb(norm: nn.Module, scale: torch.Tensor) -> None:
    """Divide what ``norm`` returns by ``scale``; its vectors are new ones, as another module may hold the old ones too."""
    for name, vector in zip(("weight", "bias"), scaled_vectors(norm), strict=False):
        new = vector / scale.to(vector.device, vector.dtype)
        setattr(norm, name, nn.Parameter(new, vector.requires_grad) if isinstance(vector, nn.Parameter) else new)
