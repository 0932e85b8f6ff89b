"""A forward compiled from the graph of a module, in place of the module's own where that is sure to be the same.

The first call that fits traces the module, compares the graph with the module's own forward on that call's inputs bit for
bit, and compiles it. Later calls run the compiled function if they are like the first and nothing of the module has
changed; all others run the module's own forward.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import dropout

from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.modules.object_forward import ObjectForward
from neural_compressor.torch.modules.relay.emission import Shape
from neural_compressor.torch.modules.relay.tracing import Guards, Traced, TraceError, is_replaced, trace

_LOG = logging.getLogger(__name__)
_TRACING = threading.RLock()
"""Tracing is for one thread at a time; others run the module's own forward meanwhile."""
_RETRACES = 8
"""A module that must be traced more often than this runs its own forward."""


class TracedForward(ObjectForward):
    """The attribute ``forward`` of a module; a copy or a pickle of it traces anew.

    ``trusted`` says that an earlier run has compared outputs, so that a loaded model computes what the saved one did.
    """

    #: What it does, for the log where it does not.
    does = "run from its graph"

    def __init__(self, module: nn.Module, trusted: bool = False) -> None:
        super().__init__(module)
        self.trusted = trusted
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
    def active(self) -> bool:
        """Whether a call like the first runs from the graph."""
        return self._run is not None

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("module", "trusted", "reason")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _traces=0)
        self._reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.reason or torch.compiler.is_compiling():
            return self.own(*args, **kwargs)
        if kwargs:
            args, names = (*args, *kwargs.values()), (*self._names(len(args)), *kwargs)
        else:
            names = self._given if len(args) == len(self._given) else self._names(len(args))
        if not self._fits(args):
            return self.own(*args[: len(args) - len(kwargs)], **kwargs)
        tensors, given = args, args[: len(args) - len(kwargs)]
        guards = self._guards
        if guards is not None and not guards.unhooked():
            return self.own(*given, **kwargs)
        if guards is None or not guards.hold():
            if self.module.training:
                return self.own(*given, **kwargs)
            return self._first(tensors, names, given, kwargs)
        if self._trainable and torch.is_grad_enabled():
            return self.own(*given, **kwargs)
        if names != self._given or tuple(t.dim() for t in tensors) != self._ranks or self._run is None:
            return self.own(*given, **kwargs)
        try:
            return self._run(self.module, *tensors)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            # If the input is at fault, this says so in the module's own words.
            result = self.own(*given, **kwargs)
            self._refuse(f"it failed on an input that the module takes: {error}", logging.WARNING)
            return result

    def _fits(self, args: Sequence[Any]) -> bool:
        """Whether the graph may take the arguments of a call."""
        return plain_tensors(args)

    def _names(self, count: int) -> tuple[str, ...]:
        """The names of the first ``count`` arguments."""
        return tuple(list(inspect.signature(type(self.module).forward).parameters)[1 : count + 1])

    def _refuse(self, reason: str, level: int = logging.DEBUG) -> None:
        self._reset()
        self.reason = reason
        _LOG.log(level, "a %s does not %s: %s", type(self.module).__name__, self.does, reason)

    # -- the first call -------------------------------------------------------------------------------------------------

    def _first(
        self, tensors: Sequence[Tensor], names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if any(is_replaced(m) for m in self.module.modules() if m is not self.module):
            return self.own(*args, **kwargs)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.module.parameters()):
            return self.own(*args, **kwargs)
        if not _TRACING.acquire(blocking=False):
            return self.own(*args, **kwargs)
        try:
            return self._trace(tensors, names, args, kwargs)
        finally:
            _TRACING.release()

    def _trace(
        self, tensors: Sequence[Tensor], names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._traces += 1
        if self._traces > _RETRACES:
            self._refuse("its attributes or its inputs keep changing")
            return self.own(*args, **kwargs)
        self._reset()
        try:
            if len(names) != len(tensors):
                raise TraceError("it takes any number of arguments")
            traced = trace(self.module, names)
            guards = Guards.of(traced)
            with torch.no_grad():
                expected = self._expected(args, kwargs)
                self._run, result = self._compile(traced, tensors, expected)
        except TraceError as error:
            if not self.trusted:  # else it is this call that is unlike those before, and the next may not be
                self._refuse(str(error))
            return self.own(*args, **kwargs)
        self._trainable = any(p.requires_grad for p in self.module.parameters())
        self._guards, self._given, self._ranks = guards, names, tuple(t.dim() for t in tensors)
        self.opaque = tuple(traced.opaque)
        return result

    def _expected(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the module's own forward gives."""
        return self.own(*args, **kwargs)

    def _compile(self, traced: Traced, tensors: Sequence[Tensor], expected: Any) -> tuple[Callable[..., Any], Any]:
        """The function to run in place of the forward, and what it gives for ``tensors``; TraceError where there is none."""
        raise NotImplementedError


class Seen(fx.Interpreter):
    """Runs a graph and notes the shapes of its values."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.root, graph=traced.graph)
        self.shapes: dict[fx.Node, Shape] = {}
        self.contiguous: set[fx.Node] = set()

    @classmethod
    def checked(cls, traced: Traced, tensors: Sequence[Tensor], expected: Any) -> Seen:
        """A run that gave what is expected; TraceError otherwise."""
        seen = cls(traced)
        try:
            found = seen.run(*tensors)
        except Exception as error:
            raise TraceError(f"its graph does not run: {error}") from error
        if not equal(found, expected):
            raise TraceError("its graph computes something else than its forward")
        return seen

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            self.shapes[n] = tuple(value.shape)
            if value.dim() > 3 and value.is_contiguous():
                self.contiguous.add(n)
        return value


def plain_tensors(args: Sequence[Any]) -> bool:
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


def equal(found: Any, expected: Any) -> bool:
    """Whether two results have the same bits."""
    a, b = list(tensors_in(found)), list(tensors_in(expected))
    same = type(found) is type(expected) and len(a) == len(b) > 0
    return same and all(
        x.shape == y.shape and x.dtype == y.dtype and _same_values(x, y) for x, y in zip(a, b, strict=True)
    )


def _same_values(x: Tensor, y: Tensor) -> bool:
    return bool(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)) if x.is_floating_point() else torch.equal(x, y)


def drop_identities(traced: Traced) -> None:
    """Take out of the graph what changes nothing."""
    for node in list(traced.graph.nodes):
        module = traced.module(node)
        skipped = isinstance(module, dropout._DropoutNd) and not module.training
        if (type(module) is nn.Identity or skipped) and len(node.all_input_nodes) == 1 and len(node.args) == 1:
            node.replace_all_uses_with(node.all_input_nodes[0])
            traced.graph.erase_node(node)
