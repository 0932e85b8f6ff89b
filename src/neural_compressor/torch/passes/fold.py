"""Pre-optimisation: fold batch normalisation into the layer before it, and find ReLUs a kernel can absorb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.structure.watch import Trace

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ADDITIONS = ("torch.Tensor.add", "torch.Tensor.add_", "torch.add")
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NOT_ALWAYS = "batch normalisation {!r} is not folded into it: not every calibration batch runs it right behind"


@dataclass
class Structure:
    """How the optimised model differs from the user's: names of modules that became ``Identity``.

    ``folded`` maps a batch norm to the layer it went into; ``relus`` maps a layer to the ReLU that follows it; ``summed``
    are layers whose output is added to something. ``unfolded`` says of a layer why a norm that follows it in some runs of
    the model stays where it is. ``products`` by functions have the function and the place of its call: those that modules
    stand for, as the plan has them, and others in the same forwards, which stay as they are.
    """

    folded: dict[str, str] = field(default_factory=dict)
    relus: dict[str, str] = field(default_factory=dict)
    summed: list[str] = field(default_factory=list)
    unfolded: dict[str, str] = field(default_factory=dict)
    products: dict[str, tuple[str, str]] = field(default_factory=dict)

    def kept_by(self, model: nn.Module, traces: Iterable[Trace]) -> Structure:
        """What of it holds in further runs; ``model`` may be the folded one, as what became ``Identity`` is still called."""
        traces, modules = list(traces), dict(model.named_modules())
        folds = {n: name for n, name in self.folded.items() if all(_fold_holds(modules, t, n, name) for t in traces)}
        lost = {name: _NOT_ALWAYS.format(norm) for norm, name in self.folded.items() if norm not in folds}
        tails = {name: norm for norm, name in folds.items()}
        relus = {
            name: relu
            for name, relu in self.relus.items()
            if name not in lost and all(_holds(t, tails.get(name, name), relu) for t in traces)
        }
        return Structure(folds, relus, self.summed, {**self.unfolded, **lost})


def find_structure(model: nn.Module, *traces: Trace, refused: Mapping[str, str] | None = None) -> Structure:
    """The layer-norm and layer-ReLU pairs of a model that ran as ``traces`` say: those that are pairs in every run.

    ``refused`` gives norms that are not folded, with the reason.
    """
    modules, refused = dict(model.named_modules()), refused or {}
    found = Structure()
    pairs = dict.fromkeys(pair for trace in traces for pair in _folds(modules, trace))
    for norm, name in pairs:
        if norm in refused:
            found.unfolded[name] = refused[norm]
        elif all(_fold_holds(modules, trace, norm, name) for trace in traces):
            found.folded[norm] = name
        else:
            found.unfolded[name] = _NOT_ALWAYS.format(norm)
    tails = {name: norm for norm, name in found.folded.items()}
    for trace in traces:
        for name in trace.by_module:
            relu = trace.follows(tails.get(name, name))
            if relu is None or not _is_layer(modules[name]) or type(modules[relu]) is not nn.ReLU:
                continue
            if all(_holds(other, tails.get(name, name), relu) for other in traces):
                found.relus[name] = relu
    found.summed = list(dict.fromkeys(name for trace in traces for name in _summed(modules, trace, found)))
    return found


def _is_layer(module: nn.Module) -> bool:
    return type(module) in (*_CONVS, *_TRANSPOSED, nn.Linear)


def _folds(modules: Mapping[str, nn.Module], trace: Trace) -> Iterator[tuple[str, str]]:
    """The norms that follow a layer in one run, with that layer."""
    for name in trace.by_module:
        norm = trace.follows(name)
        if norm is not None and _is_layer(modules[name]) and _foldable(modules[norm]):
            yield norm, name


def _fold_holds(modules: Mapping[str, nn.Module], trace: Trace, norm: str, name: str) -> bool:
    if not _holds(trace, name, norm):
        return False
    # After a Linear the channels are last, and BatchNorm1d takes them second: the same only for two dimensions.
    return not isinstance(modules[name], nn.Linear) or all(call.rank == 2 for call in trace.by_module.get(name, ()))


def _holds(trace: Trace, name: str, follower: str) -> bool:
    """Whether one module is behind the other in a run, or neither of them ran."""
    return trace.follows(name) == follower or not {name, follower} & trace.by_module.keys()


def _foldable(norm: nn.Module) -> bool:
    return type(norm) in _NORMS and not norm.training and norm.running_mean is not None


def _summed(modules: Mapping[str, nn.Module], trace: Trace, structure: Structure) -> list[str]:
    """Layers whose output, with the norm that is folded into them, an addition reads."""
    layers = dict.fromkeys(structure.folded.get(name, name) for name in added_modules(trace))
    return [name for name in layers if isinstance(modules[name], (*_CONVS, nn.Linear))]


def added_modules(trace: Trace) -> list[str]:
    """The leaf modules whose output an addition reads, in one run."""
    made_by = {number: call.module for call in trace.calls for number in call.writes}
    added = [number for call in trace.calls if call.target in _ADDITIONS for number in call.reads]
    return [name for number in added if (name := made_by.get(number)) is not None]


def has_output_range(module: nn.Module) -> bool:
    """Whether a range of what ``module`` gives can be of use to the layer it is, or to the layer it is folded into."""
    return type(module) in (*_CONVS, nn.Linear, *_NORMS)


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
