"""Layers that read one value, and what gives them that value: found in runs that were watched.

A factor on the channels of a value is no change if what makes the value divides by it and what reads it multiplies. Between
the two only what is homogeneous in each channel may stand, ``f(c x) = c f(x)`` for ``c > 0``; where ``f`` clips, as ReLU6
does, that holds below its cap alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import dropout

from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.norm_form import follows_weight
from neural_compressor.torch.structure.watch import Call, Trace

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
_HOMOGENEOUS = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.PReLU, dropout._DropoutNd, *_POOLS)
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


Reads = Mapping[str, Sequence[Hashable]]
"""What layers read in a run: for each that ran, in this order, the values it was given, call by call."""


def by_input(runs: Sequence[Reads]) -> list[tuple[str, ...]]:
    """Layers in the order they ran, together those that read the very same values in every one of ``runs``.

    >>> by_input([{"q": [1], "k": [1], "out": [2]}, {"q": [7], "k": [7], "out": [9]}])
    [('q', 'k'), ('out',)]
    """
    groups: dict[tuple[tuple[Hashable, ...], ...], list[str]] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        groups.setdefault(tuple(tuple(run.get(name, ())) for run in runs), []).append(name)
    return [tuple(names) for names in groups.values()]


def reads_of(trace: Trace, layers: Collection[str]) -> Reads:
    """What ``layers`` read first in a run that was watched."""
    ran = dict.fromkeys(call.module for call in trace.calls if call.module in layers)
    return {name: [c.reads[0] for c in trace.by_module[name] if c.reads] for name in ran if name is not None}


def reads_of_tensors(inputs: Mapping[str, Iterable[Tensor]]) -> Reads:
    """What layers read, from the tensors that each was given; that is the same value which is the same tensor."""
    return {name: [id(tensor) for tensor in tensors] for name, tensors in inputs.items()}


@contextmanager
def inputs_seen(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """The first input of each call of ``layers`` meanwhile, in the order they run.

    They are kept, and while they are there no other tensor has the identity of one.
    """
    seen: dict[str, list[Tensor]] = {}

    def see(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault(name, []).append(next(tensors_in((args, kwargs))))

    with hooked(layers, before=see):
        yield seen


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
    return [_feed(modules, traces, names) for names in by_input([reads_of(trace, layers) for trace in traces])]


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
        module = None if writer.module is None else modules[writer.module]
        if module is not None and _takes_scale(module, modules[readers[0]]):
            runs_once = len(trace.by_module[str(writer.module)]) == 1
            return (str(writer.module), cap, capped_by) if runs_once else None
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
    if isinstance(reader, CONVS):
        same = isinstance(source, CONVS) and type(source) is type(reader)
        return same or type(source) in _BATCH_NORMS
    return type(source) is nn.Linear or is_conv1d(source) or follows_weight(source)
