"""A forward that hands int8 tensors from op to op, in place of a module's own where that is sure to be the same.

``traced_forward.py`` says when it runs; where it does not, the module's own forward does, whose modules take and return
floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.schemes.error import sqnr_db
from neural_compressor.torch.batches import feed, tensors_in
from neural_compressor.torch.hooks import buffers_kept
from neural_compressor.torch.modules import QuantConv2d, QuantModule
from neural_compressor.torch.modules.relay.emission import assign
from neural_compressor.torch.modules.relay.program import Builder
from neural_compressor.torch.modules.relay.traced_forward import Seen, TracedForward, drop_identities
from neural_compressor.torch.modules.relay.tracing import Traced, TraceError

_LEAST_DB = 10.0
"""Outputs further from those of the module's own forward than this are a fault, not rounding."""


class RelayedForward(TracedForward):
    """The attribute ``forward`` of a module in which int8 goes from op to op."""

    does = "hand int8 on"

    def _compile(self, traced: Traced, tensors: Sequence[Tensor], expected: Any) -> tuple[Callable[..., Any], Any]:
        seen = Seen.checked(traced, tensors, expected)
        drop_identities(traced)
        emission = assign(traced, seen.shapes)
        if not emission.handed_on:
            raise TraceError("no op reads the int8 output of another")
        try:
            run = Builder(traced, emission, seen.shapes, seen.contiguous).build()
            result = run(self.module, *tensors)
        except Exception as error:
            raise TraceError(f"handing int8 on failed: {error}") from error
        if not self.trusted:
            _compare(result, expected)
        self.trusted = True
        for module in self.module.modules():
            if isinstance(module, QuantConv2d):
                module.forget_prepacked()  # which only its own forward needs
        return run, result


def _compare(found: Any, expected: Any) -> None:
    for a, b in zip(tensors_in(found), tensors_in(expected), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            raise TraceError(f"it gives {a.dtype} of {tuple(a.shape)} in place of {b.dtype} of {tuple(b.shape)}")
        if not a.is_floating_point() or not bool(b.abs().max()):
            continue
        decibels = sqnr_db(b.float(), a.float())
        if decibels < _LEAST_DB:
            raise TraceError(f"handing int8 on changes its outputs too much ({decibels:.1f} dB)")


# -- a whole model ------------------------------------------------------------------------------------------------------


@dataclass
class Relays:
    """The modules inside which int8 is handed from op to op, and why others do without."""

    modules: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def relay(model: nn.Module, example: Any) -> Relays:
    """Let ``model`` hand int8 on wherever its modules can be traced; runs it on ``example``."""
    found = Relays()
    waiting = [("", model)]
    while waiting:
        own = {name: module for name, module in waiting if "forward" in vars(module)}
        for name, module in waiting:
            if name not in own:
                module.forward = RelayedForward(module)
        with torch.no_grad(), buffers_kept(model):
            feed(model, example)
        tried, waiting = waiting, []
        for name, module in tried:
            forward, prefix = vars(module)["forward"], f"{name}." if name else ""
            if name in own:
                found.reasons[name] = "its forward was set on the object, and not in its class"
                parts = list(_parts(module))
            elif forward.active:
                found.modules.append(name)
                parts = [(part, module.get_submodule(part)) for part in forward.opaque]
            else:
                found.reasons[name] = forward.reason or "it is not called with float32 tensors alone, or has hooks"
                del module.__dict__["forward"]
                parts = list(_parts(module))
            waiting += [(prefix + part, m) for part, m in parts if _quantized_ops(m) > 1]
    return found


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules below one whose own forward cannot be traced, through lists and the like that have none."""
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from ((f"{name}.{inner}", m) for inner, m in _parts(child))
        elif not type(child).__module__.startswith("torch.nn") or isinstance(child, nn.Sequential):
            yield name, child


def _quantized_ops(module: nn.Module) -> int:
    return sum(isinstance(m, QuantModule) for m in module.modules())


def relayed(model: nn.Module) -> Relays:
    """What a copy of a relayed model hands on."""
    return Relays([name for name, m in model.named_modules() if isinstance(vars(m).get("forward"), RelayedForward)])


def restore(model: nn.Module, relays: Relays) -> None:
    """Let the modules that :func:`relay` once found hand int8 on again, from their next call."""
    for name in relays.modules:
        module = model.get_submodule(name)
        module.forward = RelayedForward(module, trusted=True)
