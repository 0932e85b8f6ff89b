"""Find the normalisation whose output only some layers read, so that a scale of their input can go into its weight."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from neural_compressor.errors import ConfigError
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
    reads = [c.reads[0] for c in trace.calls if c.module in inside and c.reads]
    if not reads or len(set(reads)) != 1 or reads[0] in trace.outputs:
        return None
    if {c.module for c in trace.readers.get(reads[0], [])} != inside:
        return None
    writer = next((c for c in trace.calls if reads[0] in c.writes), None)
    if writer is None or writer.module is None or len(trace.by_module[writer.module]) != 1:
        return None
    norm = block.get_submodule(writer.module)
    return norm if follows_weight(norm) else None


def named_norm(model: nn.Module, name: str) -> nn.Module:
    """The module ``name``, which must be able to take up a scale of its outputs."""
    norm = model.get_submodule(name)
    if not follows_weight(norm):
        raise ConfigError(
            f"{name!r} ({type(norm).__name__}) cannot take up a scale: dividing a vector in its weight must divide its "
            "output; name a normalisation, or take folding=False to have the scale applied at run time"
        )
    return norm


def _vectors(norm: nn.Module) -> list[torch.Tensor]:
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return []
    return [weight, bias] if isinstance(bias, torch.Tensor) else [weight]


@torch.no_grad()
def follows_weight(norm: nn.Module) -> bool:
    """Whether dividing weight and bias by a vector divides the output by it."""
    vectors = _vectors(norm)
    if not vectors or any(True for _ in norm.children()):
        return False
    generator = torch.Generator().manual_seed(0)
    first = vectors[0]
    x = torch.randn(3, len(first), generator=generator).to(first.device, first.dtype)
    scale = (torch.rand(len(first), generator=generator) + 0.5).to(first.device, first.dtype)
    before, kept = norm(x), [v.clone() for v in vectors]
    for vector in vectors:
        vector.div_(scale)
    after = norm(x)
    for vector, old in zip(vectors, kept, strict=True):
        vector.copy_(old)
    return bool(torch.allclose(after * scale, before, rtol=1e-2, atol=1e-3))


@torch.no_grad()
def absorb(norm: nn.Module, scale: torch.Tensor) -> None:
    """Divide what ``norm`` returns by ``scale``."""
    for vector in _vectors(norm):
        vector.div_(scale.to(vector.device, vector.dtype))
