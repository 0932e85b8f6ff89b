"""A forward that hands int8 tensors from op to op, in place of a module's own where that is sure to be the same.

The first call traces the module, compares the graph with the module's own forward on that call's inputs bit for bit, and
compiles it. Later calls run the compiled function if they are like the first and nothing of the module has changed;
all others run the module's own forward, whose modules take and return floats.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import dropout

from neural_compressor.schemes.error import sqnr_db
from neural_compressor.torch.batches import feed, tensors_in
from neural_compressor.torch.modules import QuantConv2d, QuantModule
from neural_compressor.torch.modules.relay.emission import Shape, assign
from neural_compressor.torch.modules.relay.program import Builder
from neural_compressor.torch.modules.relay.tracing import Guards, Traced, TraceError, trace

_LOG = logging.getLogger(__name__)
_LEAST_DB = 10.0
"""Outputs further from those of the module's own forward than this are a fault, not rounding."""
_TRACING = threading.RLock()
"""Tracing is for one thread at a time; others run the module's own forward meanwhile."""
_RETRACES = 8
"""A module that must be traced more often than this runs its own forward."""


class RelayedForward:
    """The attribute ``forward`` of a module; a copy or a pickle of it traces anew.

    ``trusted`` says that an earlier run has compared outputs, so that a loaded model computes what the saved one did.
    """

    def __init__(self, module: nn.Module, trusted: bool = False) -> None:
        self.module = module
        self.trusted = trusted
        #: Why the module runs its own forward; empty where it does not.
        self.reason = ""
        self._traces = 0
        self._reset()

    def _reset(self) -> None:
        self._run: Callable[..., Any] | None = None
        self._guards: Guards | None = None
        self._given: tuple[str, ...] = ()
        self._trainable = False
        self._ranks: tuple[int, ...] = ()
        #: Modules below that are called as they are.
        self.opaque: tuple[str, ...] = ()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.module).forward.__get__(self.module))

    def __getattr__(self, name: str) -> Any:
        """What a method has beside: ``torch.export`` reads the place of its code."""
        if name in ("__code__", "__globals__", "__name__", "__qualname__"):
            return getattr(type(self.module).forward, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def active(self) -> bool:
        """Whether a call like the first hands int8 on."""
        return self._run is not None

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("module", "trusted", "reason")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _traces=0)
        self._reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = type(self.module).forward
        if self.reason or torch.compiler.is_compiling():
            return own(self.module, *args, **kwargs)
        if kwargs:
            args, names = (*args, *kwargs.values()), (*self._names(len(args)), *kwargs)
        else:
            names = self._given if len(args) == len(self._given) else self._names(len(args))
        if not _plain(args):
            return own(self.module, *args[: len(args) - len(kwargs)], **kwargs)
        tensors, given = args, args[: len(args) - len(kwargs)]
        guards = self._guards
        if guards is not None and not guards.unhooked():
            return own(self.module, *given, **kwargs)
        if guards is None or not guards.hold():
            if self.module.training:
                return own(self.module, *given, **kwargs)
            return self._first(tensors, names, given, kwargs)
        if self._trainable and torch.is_grad_enabled():
            return own(self.module, *given, **kwargs)
        if names != self._given or tuple(t.dim() for t in tensors) != self._ranks or self._run is None:
            return own(self.module, *given, **kwargs)
        try:
            return self._run(self.module, *tensors)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            # If the input is at fault, this says so in the module's own words.
            result = own(self.module, *given, **kwargs)
            self._refuse(f"it failed on an input that the module takes: {error}", logging.WARNING)
            return result

    def _names(self, count: int) -> tuple[str, ...]:
        """The names of the first ``count`` arguments."""
        return tuple(list(inspect.signature(type(self.module).forward).parameters)[1 : count + 1])

    def _refuse(self, reason: str, level: int = logging.DEBUG) -> None:
        self._reset()
        self.reason = reason
        _LOG.log(level, "int8 is not handed on in %s: %s", type(self.module).__name__, reason)

    # -- the first call -------------------------------------------------------------------------------------------------

    def _first(
        self, tensors: Sequence[Tensor], names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        own = type(self.module).forward
        if any(m._forward_hooks or m._forward_pre_hooks for m in self.module.modules() if m is not self.module):
            return own(self.module, *args, **kwargs)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.module.parameters()):
            return own(self.module, *args, **kwargs)
        if not _TRACING.acquire(blocking=False):
            return own(self.module, *args, **kwargs)
        try:
            return self._trace(tensors, names, args, kwargs)
        finally:
            _TRACING.release()

    def _trace(
        self, tensors: Sequence[Tensor], names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        own = type(self.module).forward
        self._traces += 1
        if self._traces > _RETRACES:
            self._refuse("its attributes or its inputs keep changing")
            return own(self.module, *args, **kwargs)
        self._reset()
        try:
            if len(names) != len(tensors):
                raise TraceError("it takes any number of arguments")
            traced = trace(self.module, names)
            guards = Guards(traced)
            with torch.no_grad():
                expected = own(self.module, *args, **kwargs)
                result = self._compile(traced, tensors, expected)
        except TraceError as error:
            if not self.trusted:  # else it is this call that is unlike those before, and the next may not be
                self._refuse(str(error))
            return own(self.module, *args, **kwargs)
        self._trainable = any(p.requires_grad for p in self.module.parameters())
        self._guards, self._given, self._ranks = guards, names, tuple(t.dim() for t in tensors)
        self.opaque = tuple(traced.opaque)
        return result

    def _compile(self, traced: Traced, tensors: Sequence[Tensor], expected: Any) -> Any:
        seen = _Seen(traced)
        try:
            found = seen.run(*tensors)
        except Exception as error:
            raise TraceError(f"its graph does not run: {error}") from error
        if not _equal(found, expected):
            raise TraceError("its graph computes something else than its forward")
        _drop_identities(traced)
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
        self.trusted, self._run = True, run
        for module in self.module.modules():
            if isinstance(module, QuantConv2d):
                module.forget_prepacked()  # which only its own forward needs
        return result


class _Seen(fx.Interpreter):
    """Runs a graph and notes the shapes of its values."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.root, graph=traced.graph)
        self.shapes: dict[fx.Node, Shape] = {}
        self.contiguous: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            self.shapes[n] = tuple(value.shape)
            if value.dim() > 3 and value.is_contiguous():
                self.contiguous.add(n)
        return value


def _plain(args: Sequence[Any]) -> bool:
    """Whether all are float32 tensors in memory, with values to compute on and without a gradient to keep."""
    if torch._C._get_tracing_state() is not None:
        return False
    grad = torch.is_grad_enabled()
    for x in args:
        if type(x) is not Tensor or x.dtype is not torch.float32 or not x.is_cpu or not x.numel():
            return False
        if grad and x.requires_grad:
            return False
    return bool(args)


def _equal(found: Any, expected: Any) -> bool:
    a, b = list(tensors_in(found)), list(tensors_in(expected))
    same = type(found) is type(expected) and len(a) == len(b) > 0
    return same and all(
        x.shape == y.shape and x.dtype == y.dtype and _same_values(x, y) for x, y in zip(a, b, strict=True)
    )


def _same_values(x: Tensor, y: Tensor) -> bool:
    return bool(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)) if x.is_floating_point() else torch.equal(x, y)


def _compare(found: Any, expected: Any) -> None:
    for a, b in zip(tensors_in(found), tensors_in(expected), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            raise TraceError(f"it gives {a.dtype} of {tuple(a.shape)} in place of {b.dtype} of {tuple(b.shape)}")
        if not a.is_floating_point() or not bool(b.abs().max()):
            continue
        decibels = sqnr_db(b.float(), a.float())
        if decibels < _LEAST_DB:
            raise TraceError(f"handing int8 on changes its outputs too much ({decibels:.1f} dB)")


def _drop_identities(traced: Traced) -> None:
    for node in list(traced.graph.nodes):
        module = traced.module(node)
        skipped = isinstance(module, dropout._DropoutNd) and not module.training
        if (type(module) is nn.Identity or skipped) and len(node.all_input_nodes) == 1 and len(node.args) == 1:
            node.replace_all_uses_with(node.all_input_nodes[0])
            traced.graph.erase_node(node)


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
        with torch.no_grad():
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
