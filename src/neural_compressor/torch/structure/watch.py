"""Find out how a model's modules are connected by watching it run.

Works on any eager model: nothing is traced symbolically, no model is special-cased. Tensors get a fresh number
each time something returns them; a call is a leaf module or a torch function with the numbers it read and wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from neural_compressor.torch.batches import feed, tensors_in
from neural_compressor.torch.hooks import forward_replaced, hooked, uncompiled
from neural_compressor.torch.modules.function_products import (
    ATTENTION,
    WHOLE_ATTENTION,
    call_site,
    inside_of,
    product_kind,
)

# Reading a tensor's metadata does not use its values; properties such as ``.mT`` that give a tensor do.
_METADATA = ("size", "dim", "numel", "is_floating_point", "stride", "__len__", "__hash__", "is_contiguous")

_LIBRARY = ("torch.nn.", "neural_compressor.")
"""Where leaf modules come from whose inside is known."""


@dataclass(frozen=True)
class Call:
    """One leaf module (``module`` is its name) or one torch function (``module`` is None) that ran.

    ``rank`` is the number of dimensions of its first output, ``inside`` the module whose forward called it. ``site`` is
    where a product was called, if all that it multiplies comes from layers, parameters or inputs: angles of positions and
    masks do not.
    """

    target: str
    module: str | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    rank: int = 0
    inside: str = ""
    site: str = ""


@dataclass
class Trace:
    """What was seen of one run of a model.

    ``within`` are functions that a leaf module of the user's own called; that is one call among ``calls``. ``shapes`` are
    those of all tensors, by number; ``read`` are the names of the parameters and buffers that functions outside of leaf
    modules read.
    """

    calls: list[Call] = field(default_factory=list)
    within: list[Call] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    read: frozenset[str] = frozenset()

    @property
    def path(self) -> tuple[Any, ...]:
        """What ran and how it was connected; two runs with equal paths went the same way through the model."""
        return tuple(self.calls), self.inputs, self.outputs

    @cached_property
    def by_module(self) -> dict[str, list[Call]]:
        """The calls of each leaf module."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.module is not None:
                found.setdefault(call.module, []).append(call)
        return found

    @cached_property
    def readers(self) -> dict[int, list[Call]]:
        """The calls that read each tensor."""
        found: dict[int, list[Call]] = {}
        for call in self.calls:
            for number in call.reads:
                found.setdefault(number, []).append(call)
        return found

    def only_reader(self, call: Call) -> Call | None:
        """The one call that reads the one output of ``call``, if nothing else does."""
        if len(call.writes) != 1 or call.writes[0] in self.outputs:
            return None
        readers = self.readers.get(call.writes[0], [])
        return readers[0] if len(readers) == 1 else None

    def follows(self, name: str) -> str | None:
        """The leaf module that alone reads the output of ``name``, where each of the two ran once."""
        calls = self.by_module.get(name, [])
        follower = self.only_reader(calls[0]) if len(calls) == 1 else None
        if follower is None or follower.module is None or len(self.by_module[follower.module]) != 1:
            return None
        return follower.module


class _Recorder(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace
        self.inside_leaf = 0
        self.scopes = [""]
        self.own_leaf: str | None = None
        self._numbers: Any = WeakIdKeyDictionary()
        self._valued: Any = WeakIdKeyDictionary()
        self._read: Any = WeakIdKeyDictionary()
        self._next = 0

    def number(self, tensor: torch.Tensor) -> int:
        if tensor not in self._numbers:
            self.renumber(tensor)
        return int(self._numbers[tensor])

    def read_among(self, tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """The names of those whose values a function outside of leaf modules read."""
        return frozenset(name for name, tensor in tensors.items() if tensor in self._read)

    def renumber(self, tensor: torch.Tensor) -> int:
        self._next += 1
        self._numbers[tensor] = self._next
        self.trace.shapes[self._next] = tuple(tensor.shape)
        return self._next

    def record(
        self, target: str, module: str | None, reads: tuple[int, ...], result: Any, inside: str = "", site: str = ""
    ) -> None:
        tensors = list(tensors_in(result))
        writes = tuple(self.renumber(t) for t in tensors)
        rank = tensors[0].dim() if tensors else 0
        self.trace.calls.append(Call(target, module, reads, writes, rank, inside or self.scopes[-1], site))

    def has_values(self, *values: Any) -> bool:
        """Whether any tensor among ``values`` comes from layers, parameters or float inputs."""
        return any(tensor in self._valued for tensor in tensors_in(values))

    def give_values(self, value: Any) -> None:
        for tensor in tensors_in(value):
            if tensor.is_floating_point():
                self._valued[tensor] = True

    def _site(self, func: Any, args: Any, kwargs: Any) -> str:
        kind = product_kind(func, kwargs)
        first = 1 if kind == "baddbmm" else 0  # which is added
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        multiplied = operands[first : 3 if kind == ATTENTION else first + 2]
        return call_site()[0] if kind and all(self.has_values(tensor) for tensor in multiplied) else ""

    def _inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function of torch gives that calls products itself; these are noted as inside the module that calls it."""
        before, self.own_leaf = self.own_leaf, self.scopes[-1] if self.own_leaf is None else self.own_leaf
        self.inside_leaf += 1
        try:
            with self:
                return inside_of(func)(*args, **kwargs)
        finally:
            self.inside_leaf -= 1
            self.own_leaf = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if called in _METADATA or (self.inside_leaf and self.own_leaf is None):
            return func(*args, **kwargs)
        reads = () if self.inside_leaf else tuple(self.number(t) for t in tensors_in((args, kwargs)))
        site, valued = self._site(func, args, kwargs), self.has_values(args, kwargs)
        result = (self._inside if called == WHOLE_ATTENTION else _call)(func, args, kwargs)
        if valued:
            self.give_values(result)
        target = resolve_name(func) or called or str(func)
        if self.inside_leaf:
            assert self.own_leaf is not None
            self.trace.within.append(Call(target, None, (), (), inside=self.own_leaf, site=site))
        elif called != "__get__" or next(tensors_in(result), None) is not None:
            self.record(target, None, reads, result, site=site)
            self._read.update(dict.fromkeys(tensors_in((args, kwargs)), True))
        return result


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def watch(
    model: torch.nn.Module,
    inputs: Any,
    leaves: Mapping[str, torch.nn.Module] | None = None,
    run: Callable[[], Any] | None = None,
) -> Trace:
    """Run ``model`` once on ``inputs`` and return what happened.

    ``leaves`` are the modules seen as one call; by default every module without children. ``run`` calls the model where
    that takes more than its inputs.
    """
    trace = Trace()
    recorder = _Recorder(trace)
    if leaves is None:
        leaves = {name: m for name, m in model.named_modules() if not any(True for _ in m.children())}
    reads: dict[str, list[tuple[int, ...]]] = {name: [] for name in leaves}

    def enter(name: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        reads[name].append(tuple(recorder.number(t) for t in tensors_in((args, kwargs))))
        recorder.inside_leaf += 1
        if not type(module).__module__.startswith(_LIBRARY):
            recorder.own_leaf = name

    def leave(name: str, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        recorder.inside_leaf -= 1
        recorder.own_leaf = None
        if next(module.parameters(), None) is not None or recorder.has_values(args, kwargs):
            recorder.give_values(result)
        if getattr(module, "by_function", False):
            recorder.record("torch.matmul", None, reads[name].pop(), result, inside=name)
        else:
            recorder.record(type(module).__name__, name, reads[name].pop(), result)

    def begin(name: str, *call: Any) -> None:
        recorder.scopes.append(name)

    def end(*call: Any) -> None:
        recorder.scopes.pop()

    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}  # a forward may put others in their place
    others = {name: module for name, module in model.named_modules() if name and name not in leaves}
    with hooked(others, begin, end), hooked(leaves, enter, leave), torch.no_grad(), uncompiled(model):
        trace.inputs = frozenset(recorder.number(t) for t in tensors_in(inputs))
        recorder.give_values((inputs, list(model.parameters())))
        with recorder:
            outputs = feed(model, inputs) if run is None else run()
            trace.outputs = frozenset(recorder.number(t) for t in tensors_in(outputs))
    trace.read = recorder.read_among(held)
    return trace


@dataclass(frozen=True)
class Run:
    """A call of a model: what it was given, as that was before, what it gave, and the random state it began with."""

    trace: Trace
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    rng: torch.Tensor


@contextmanager
def watched(model: torch.nn.Module, tell: Callable[[Run], Any]) -> Iterator[None]:
    """Watch each call of ``model`` by whoever calls it, and ``tell`` what was seen."""
    own = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs: list[Any] = []
        # A run may write into what it is given.
        given: Any = tree_map_only(torch.Tensor, torch.Tensor.clone, (args, kwargs))
        rng = torch.get_rng_state()

        def run() -> Any:
            outputs.append(own(*args, **kwargs))
            return outputs[0]

        trace = watch(model, (args, kwargs), run=run)
        tell(Run(trace, given[0], given[1], outputs[0], rng))
        return outputs[0]

    with forward_replaced(model, functools.wraps(own)(forward)):
        yield
