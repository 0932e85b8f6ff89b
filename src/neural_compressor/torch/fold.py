"""Pre-optimisation: fold batch normalisation into the layer before it, and find ReLUs a kernel can absorb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from neural_compressor.torch.watch import Call, Trace

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ADDITIONS = ("torch.Tensor.add", "torch.Tensor.add_", "torch.add")
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass
class Structure:
    """How the optimised model differs from the user's: names of modules that became ``Identity``.

    ``folded`` maps a batch norm to the layer it went into; ``relus`` maps a layer to the ReLU that follows it; ``summed``
    are layers whose output is added to something.
    """

    folded: dict[str, str] = field(default_factory=dict)
    relus: dict[str, str] = field(default_factory=dict)
    summed: list[str] = field(default_factory=list)


def find_structure(model: nn.Module, trace: Trace) -> Structure:
    """The layer-norm and layer-ReLU pairs of a model that ran as ``trace`` says."""
    modules = dict(model.named_modules())
    called = trace.times_called()
    structure = Structure()
    for call in trace.calls:
        if call.module is None or called[call.module] != 1:
            continue
        if type(modules[call.module]) not in (*_CONVS, *_TRANSPOSED, nn.Linear):
            continue
        name, follower = call.module, _next_module(trace, call, called)
        if follower in modules and _foldable(call, modules[name], modules[follower]):
            structure.folded[follower] = name
            norm_call = next(c for c in trace.calls if c.module == follower)
            follower = _next_module(trace, norm_call, called)
        if follower in modules and type(modules[follower]) is nn.ReLU:
            structure.relus[name] = follower
    structure.summed = _summed(modules, trace, structure)
    return structure


def _summed(modules: Mapping[str, nn.Module], trace: Trace, structure: Structure) -> list[str]:
    """Layers whose output, with the norm that is folded into them, an addition reads."""
    made_by = {number: call.module for call in trace.calls for number in call.writes}
    added = [number for call in trace.calls if call.target in _ADDITIONS for number in call.reads]
    names = (made_by.get(number) for number in added)
    layers = dict.fromkeys(structure.folded.get(name, name) for name in names if name is not None)
    return [name for name in layers if isinstance(modules[name], (*_CONVS, nn.Linear))]


def _next_module(trace: Trace, call: Call, called: Counter[str]) -> str:
    follower = trace.only_reader(call)
    return follower.module if follower and follower.module and called[follower.module] == 1 else "(none)"


def _foldable(call: Call, layer: nn.Module, norm: nn.Module) -> bool:
    # After a Linear the channels are last, and BatchNorm1d takes them second: the same only for two dimensions.
    matches = call.rank == 2 if isinstance(layer, nn.Linear) else True
    return matches and type(norm) in _NORMS and not norm.training and norm.running_mean is not None


def fold(model: nn.Module, structure: Structure) -> nn.Module:
    """Fold the batch norms of ``structure`` into their layers, in place."""
    for norm_name, layer_name in structure.folded.items():
        norm, layer = model.get_submodule(norm_name), model.get_submodule(layer_name)
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and isinstance(
            layer, (nn.Linear, nn.modules.conv._ConvNd)
        ):
            _fold_pair(layer, norm)
        replace_module(model, norm_name, nn.Identity())
    return model


@torch.no_grad()
def _fold_pair(layer: nn.Linear | nn.modules.conv._ConvNd, norm: nn.modules.batchnorm._BatchNorm) -> None:
    if norm.running_mean is None or norm.running_var is None:
        return
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    shift = -norm.running_mean * factor if norm.bias is None else norm.bias - norm.running_mean * factor
    weight = layer.weight
    if isinstance(layer, _TRANSPOSED):
        # (in, out / groups, ...): output channel g * (out / groups) + j sits in the rows of group g.
        per_group = factor.reshape(layer.groups, 1, -1).expand(-1, weight.shape[0] // layer.groups, -1)
        scale = per_group.reshape(weight.shape[0], weight.shape[1], *([1] * (weight.dim() - 2)))
    else:
        scale = factor.reshape(-1, *([1] * (weight.dim() - 1)))
    bias = shift if layer.bias is None else shift + layer.bias * factor
    layer.weight = nn.Parameter((weight * scale).to(weight.dtype), requires_grad=weight.requires_grad)
    layer.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=weight.requires_grad)


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put ``new`` in the place of the module ``name``, wherever the same module object is used."""
    old = model.get_submodule(name)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old and path:
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, new)
