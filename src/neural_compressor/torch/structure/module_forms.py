"""What the modules of a model do with turned values, found by running the model and trying each of them."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.structure.layer_form import (
    LayerForm,
    ModuleCallError,
    called,
    holds_matrices,
    known_form,
    tried_form,
)
from neural_compressor.torch.structure.norm_form import NormForm, norm_form
from neural_compressor.torch.structure.replay import Arguments, call_block
from neural_compressor.torch.structure.watch import Trace, watch

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class ModuleForms:
    """The modules that are seen as one call, by name: layers, modules that commute with turns of their input (norms), and
    those that give the same whatever the floats of their inputs are (rotary embeddings); the shapes of the parameters and
    buffers that no run used."""

    layers: Mapping[str, LayerForm]
    norms: Mapping[str, NormForm]
    blind: frozenset[str]
    unused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def tried_modules(model: nn.Module, calls: Sequence[Arguments]) -> tuple[ModuleForms, list[Trace]]:
    """What the modules of ``model`` do on ``calls``, and how these ran."""
    leaves = _leaves(dict(model.named_modules()))
    layers, blind = _tried(model, leaves, calls)
    traces = [
        watch(model, call, leaves, run=lambda call=call: call_block(model, call))  # type: ignore[misc]
        for call in calls
    ]
    unused = _unused(model, leaves, traces)
    return ModuleForms(layers, _norm_forms(leaves, traces, layers), frozenset(blind), unused), traces


def _unused(model: nn.Module, leaves: Mapping[str, nn.Module], traces: Iterable[Trace]) -> dict[str, tuple[int, ...]]:
    """The parameters, and buffers of floats, of modules that no run called, and that no function read either."""
    held, used = {**dict(model.named_parameters()), **dict(model.named_buffers())}, set[int]()
    for trace in traces:
        inside = [leaves[name] for name in trace.by_module]
        used |= {id(t) for module in inside for t in (*module.parameters(), *module.buffers())}
        used |= {id(held[name]) for name in trace.read if name in held}
    return {name: tuple(t.shape) for name, t in held.items() if t.is_floating_point() and id(t) not in used}


def _leaves(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The modules that are seen as one call: those without children, and those that multiply with matrices of their own."""
    whole = tuple(f"{name}." for name, module in modules.items() if name and holds_matrices(module))
    outer = {name: module for name, module in modules.items() if not name.startswith(whole)}
    return {n: m for n, m in outer.items() if f"{n}." in whole or not any(True for _ in m.children())}


def _norm_forms(
    modules: Mapping[str, nn.Module], traces: Iterable[Trace], layers: Mapping[str, LayerForm]
) -> dict[str, NormForm]:
    """The modules that commute with turns of their input."""
    shapes: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        for call in trace.calls:
            if call.module is not None and len(call.reads) == 1:
                shapes.setdefault(call.module, trace.shapes[call.reads[0]])
    tried = {n: norm_form(modules[n], shape) for n, shape in shapes.items() if n not in layers}
    return {name: form for name, form in tried.items() if form is not None}


def _tried(
    model: nn.Module, leaves: Mapping[str, nn.Module], calls: Sequence[Arguments]
) -> tuple[dict[str, LayerForm], set[str]]:
    """The layers with their forms, and the leaves that are blind."""
    forms = {name: form for name, module in leaves.items() if (form := known_form(module)) is not None}
    blind: set[str] = set()
    tried: set[str] = set()

    def try_module(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if name in tried:
            return
        tried.add(name)
        try:
            if holds_matrices(module):
                found = tried_form(_without_hooks(module), args, kwargs)
                forms.update({} if found is None else {name: found})
            elif sum(1 for _ in tensors_in((args, kwargs))) > 1 and _ignores_floats(module, args, kwargs, output):
                blind.add(name)
        except ModuleCallError as error:
            logger.debug("module %r (%s) is taken for one that mixes values: %s", name, type(module).__name__, error)

    with hooked({name: m for name, m in leaves.items() if name not in forms}, after=try_module):
        for call in calls:
            call_block(model, call)
    return forms, blind


def _without_hooks(module: nn.Module) -> nn.Module:
    """A module to call with other inputs while the one it is a copy of is being watched."""
    alone = copy.copy(module)
    alone._forward_hooks, alone._forward_pre_hooks = OrderedDict(), OrderedDict()
    return alone


def _ignores_floats(module: nn.Module, args: Any, kwargs: Any, output: Any) -> bool:
    other_args, other_kwargs = tree_map_only(torch.Tensor, _other, (args, kwargs))
    again = called(lambda: module.forward(*other_args, **other_kwargs))
    pairs = list(zip(tensors_in(output), tensors_in(again), strict=False))
    return bool(pairs) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def _other(values: torch.Tensor) -> torch.Tensor:
    return values.flip(-1) * 2 + 1 if values.is_floating_point() and values.dim() else values
