"""Scales of channels that move from one layer into another: which layers read what, and who can take a scale up.

A factor on the channels of a value is no change if what makes the value divides by it and what reads it multiplies. Between
the two only what is homogeneous in each channel may stand, ``f(c x) = c f(x)`` for ``c > 0``; where ``f`` clips, as ReLU6
does, that holds below its cap alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules import dropout

from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.passes.absorb import follows_weight
from neural_compressor.torch.structure.watch import Call, Trace

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
_HOMOGENEOUS = (nn.Identity, nn.ReLU, nn.LeakyReLU, dropout._DropoutNd, *_POOLS)
_FUNCTIONS = (
    "relu",
    "relu_",
    "leaky_relu",
    "leaky_relu_",
    "dropout",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
)


@dataclass(frozen=True)
class Feed:
    """Layers that read one value, in every run that was seen.

    ``source`` is the layer or normalisation whose output channels can be scaled in the place of theirs, because nothing else
    reads what it gives; None where there is none. ``cap`` is where ``capped_by``, which stands between, clips.
    """

    readers: tuple[str, ...]
    source: str | None = None
    cap: float = float("inf")
    capped_by: str | None = None


def feeds(model: nn.Module, traces: Sequence[Trace], layers: Collection[str]) -> list[Feed]:
    """The groups of ``layers`` that read the same value, in the order they run, each with who can take its scale up."""
    modules = dict(model.named_modules())
    groups: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for name in dict.fromkeys(call.module for trace in traces for call in trace.calls):
        if name is not None and name in layers:
            read = (tuple(c.reads[0] for c in trace.by_module.get(name, ()) if c.reads) for trace in traces)
            groups.setdefault(tuple(read), []).append(name)
    return [_feed(modules, traces, tuple(names)) for names in groups.values()]


def _feed(modules: Mapping[str, nn.Module], traces: Sequence[Trace], readers: tuple[str, ...]) -> Feed:
    ran = [trace for trace in traces if readers[0] in trace.by_module]
    found = {_source(modules, trace, readers) for trace in ran}
    first = next(iter(found), None)
    if len(found) != 1 or first is None or any(first[0] in t.by_module for t in traces if t not in ran):
        return Feed(readers)
    return Feed(readers, *first)


def _source(
    modules: Mapping[str, nn.Module], trace: Trace, readers: tuple[str, ...]
) -> tuple[str, float, str | None] | None:
    """Who can take a scale up in one run, and where what is between clips."""
    if any(len(trace.by_module.get(name, ())) != 1 for name in readers):
        return None
    writers = {number: call for call in trace.calls for number in call.writes}
    number, calls = trace.by_module[readers[0]][0].reads[0], {id(trace.by_module[name][0]) for name in readers}
    cap, capped_by = float("inf"), None
    while True:
        if number in trace.outputs or {id(call) for call in trace.readers[number]} != calls:
            return None
        writer = writers.get(number)
        if writer is None or len(writer.writes) != 1:
            return None
        if writer.module is not None and len(trace.by_module[writer.module]) != 1:
            return None
        module = None if writer.module is None else modules[writer.module]
        if module is not None and _takes_scale(module, modules[readers[0]]):
            return str(writer.module), cap, capped_by
        if not _is_homogeneous(writer, module):
            return None
        if isinstance(module, nn.Hardtanh):
            if cap < module.max_val:
                return None
            cap, capped_by = float(module.max_val), writer.module
        number, calls = writer.reads[0], {id(writer)}


def _is_homogeneous(call: Call, module: nn.Module | None) -> bool:
    if module is None:
        return len(call.reads) == 1 and call.target.rpartition(".")[2] in _FUNCTIONS
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one
        return module.min_val == 0
    return type(module) in _HOMOGENEOUS or isinstance(module, dropout._DropoutNd)


def _takes_scale(source: nn.Module, reader: nn.Module) -> bool:
    """Whether scaling output channels of ``source`` scales input channels of ``reader``, which lie along the same axis."""
    if isinstance(reader, _CONVS):
        same = isinstance(source, _CONVS) and type(source) is type(reader)
        return same or type(source) in _BATCH_NORMS
    return type(source) is nn.Linear or is_conv1d(source) or follows_weight(source)


def is_scalable(module: nn.Module) -> bool:
    """Whether the input channels of a layer can be scaled by its weight."""
    return type(module) in (nn.Linear, *_CONVS) or is_conv1d(module)


# -- weights by their input channels ----------------------------------------------------------------------------------


def _by_input(module: nn.Module, weight: Tensor) -> Tensor:
    """A view (groups, outputs of one, inputs of one, the rest); input ``j`` is number ``j`` of the first and third."""
    groups = module.groups if isinstance(module, _CONVS) else 1
    if is_conv1d(module):
        weight = weight.T
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


def input_reach(module: nn.Module) -> Tensor:
    """The largest magnitude among the weights of each input channel."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return _by_input(module, weight.detach().float()).abs().amax((1, 3)).flatten()


def output_reach(module: nn.Module) -> Tensor:
    """The largest magnitude among the weights of each output channel."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return (weight.T if is_conv1d(module) else weight).detach().float().flatten(1).abs().amax(1)


def scale_inputs(module: nn.Module, scale: Tensor) -> None:
    """Multiply the weights of each input channel by ``scale``; the parameter is a new one."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    view = _by_input(module, weight.detach())
    new = view * scale.to(view.dtype).reshape(view.shape[0], 1, view.shape[2], 1)
    new = new.reshape(weight.T.shape).T.contiguous() if is_conv1d(module) else new.reshape(weight.shape)
    module.weight = nn.Parameter(new, requires_grad=weight.requires_grad)


def scale_outputs(module: nn.Module, scale: Tensor) -> None:
    """Multiply weights and bias of each output channel by ``scale``; the parameters are new ones."""
    for name in ("weight", "bias"):
        old = getattr(module, name, None)
        if isinstance(old, Tensor):
            along = old.dim() - 1 if is_conv1d(module) or name == "bias" else 0
            factor = scale.to(old.dtype).reshape([-1 if axis == along else 1 for axis in range(old.dim())])
            setattr(module, name, nn.Parameter(old.detach() * factor, requires_grad=old.requires_grad))


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """What :func:`restore_parameters` puts back."""
    return dict(module._parameters)


def restore_parameters(module: nn.Module, kept: Mapping[str, nn.Parameter | None]) -> None:
    """Undo changes of parameters."""
    for name, parameter in kept.items():
        setattr(module, name, parameter)
