"""How a model behaves over many batches: the ways through it that were seen, and what may be folded on all of them."""

from __future__ import annotations

import inspect
import itertools
import linecache
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map_only

from neural_compressor.schemes import Plan
from neural_compressor.torch.batches import feed, fitting, on_device_of, tensors_in
from neural_compressor.torch.checks import copy_of
from neural_compressor.torch.hooks import call_layers, evaluating
from neural_compressor.torch.modules.function_products import (
    FunctionProduct,
    close_products,
    open_products,
    opened_products,
)
from neural_compressor.torch.modules.relay.tracing import attributes, restore
from neural_compressor.torch.passes.fold import Structure, find_structure, fold
from neural_compressor.torch.structure.feeds import Feed, feeds
from neural_compressor.torch.structure.ops import find_products
from neural_compressor.torch.structure.watch import Call, Run, Trace, watch, watched

_COMPARED = 8
"""On so many different ways through the model its outputs are compared; on the others what was connected is the proof."""
_MOST_TRACES = 32
"""So many different ways through the model are kept to look for what may be folded; further ones only take away."""
_UNSURE = (
    "batch normalisation {!r} is not folded into it: the forward that calls both branches on its inputs, and other data "
    "may part them"
)
NOT_LOOKED_FOR = (
    "Products that forwards compute by functions are ops where the model can be run first: give example_inputs"
)
_MOST_WAYS = 16
"""A forward with more conditions, or ways through it, than this is not looked through."""
_ROUNDING = 1024
"""Machine epsilons, relative to the norm of an output, that two orders of float arithmetic may be apart."""

_FAR = 8
"""So many operations, and no more, are looked at between a layer and those that read what it gives."""


class Survey:
    """Watches ``model`` on one batch after the other; :attr:`structure` is what holds on all of them.

    A batch costs one run. Where a batch goes a way through the model that none before it went, the folded model runs on it
    too, and must give the same: folding is also wrong where a forward reads a weight that no call shows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.traces: list[Trace] = []
        self.structure = Structure()
        self.model = sharing_weights(model).eval()
        call_layers(self.model)
        self._paths: set[Any] = set()
        self._refused: dict[str, str] = {}
        self._ways: dict[str, list[fx.Graph] | None] = {}

    def see(self, inputs: Any) -> None:
        """Run the model on the inputs of one batch."""
        runs: list[Run] = []
        with torch.no_grad(), watched(self.model, runs.append):
            feed(self.model, _copied(inputs))
        for run in runs:  # once the model has its own forward back, which copies of it are to have
            self.note(run)

    def note(self, run: Run) -> None:
        """Take a run of the model, or of one that is built and connected as it is, into account."""
        trace = run.trace
        if trace.path in self._paths:
            return
        self._paths.add(trace.path)
        if len(self.traces) == _MOST_TRACES:
            self.structure = self.structure.kept_by(self.model, [trace])
            return
        self.traces.append(trace)
        self._find()
        if self.structure.folded and len(self.traces) <= _COMPARED:
            self._compare(run)

    @cached_property
    def products(self) -> dict[str, FunctionProduct] | None:
        """Products that forwards compute by functions, by name; None where the model could not be run.

        They are found once, before any is opened: a plan names them as they were called then.
        """
        return find_products(self.model, self.traces) if self.traces else products_on(self.model, None)

    def open_products(self, model: nn.Module, plan: Plan) -> bool:
        """Make modules of the products that ``plan`` names, in ``model`` and in its own; whether any is new."""
        named, products = [name for name, _ in plan], self.products or {}
        open_products(model, products)
        close_products(model, named)
        before = opened_products(self.model)
        close_products(self.model)
        open_products(self.model, products)
        close_products(self.model, [*named, *(name + part for name, each in before.items() for part in each.parts)])
        return bool(opened_products(self.model).keys() - before.keys())

    def _find(self) -> None:
        found = find_structure(self.model, *self.traces, refused=self._refused)
        unsure = {norm: _UNSURE.format(norm) for norm, name in found.folded.items() if self._may_part(name, norm)}
        if unsure:
            self._refused |= unsure
            found = find_structure(self.model, *self.traces, refused=self._refused)
        tails = {name: norm for norm, name in found.folded.items()}
        relus = {name: relu for name, relu in found.relus.items() if not self._may_part(tails.get(name, name), relu)}
        self.structure = replace(found, relus=relus)

    def feeds(self, model: nn.Module, layers: Collection[str]) -> list[Feed]:
        """The groups of ``layers`` of ``model`` that read one value, with what takes their scale up, on other data too."""
        found = feeds(model, self.traces, layers)
        return [Feed(f.readers) if f.source and self._may_part(f.source, *f.readers) else f for f in found]

    def _may_part(self, name: str, *others: str) -> bool:
        """Whether the forward that calls these modules may do something else with what ``name`` gives, on other data."""
        parts = zip(*(each.split(".") for each in (name, *others)), strict=False)
        parent = ".".join(same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, parts))
        if parent not in self._ways:
            self._ways[parent] = ways_through(self.model.get_submodule(parent))
        graphs, below = self._ways[parent], len(parent) + 1 if parent else 0
        inside = [other[below:] for other in others]
        found = [_between(graph, name[below:], inside) for graph in graphs or ()]
        return graphs is None or None in found or len({each for each in found if each}) > 1

    def _compare(self, run: Run) -> None:
        """Give up folds that change what the model computes: those that do so alone, or else all of them."""

        def wrong(folds: dict[str, str]) -> bool:
            return not same_outputs(_again(fold(sharing_weights(self.model), Structure(folds)), run), run.outputs)

        while wrong(self.structure.folded):
            folds = self.structure.folded
            guilty = [norm for norm, name in folds.items() if wrong({norm: name})] or list(folds)
            for norm in guilty:
                self._refused[norm] = f"batch normalisation {norm!r} is not folded into it: that changes the outputs"
            self._find()


def products_on(model: nn.Module, example_inputs: Any) -> dict[str, FunctionProduct] | None:
    """Products that ``model`` computes by functions on ``example_inputs``, or on the dummy inputs that it has itself.

    None where there are neither, and it cannot be run.
    """
    inputs = example_inputs if example_inputs is not None else getattr(model, "dummy_inputs", None)
    if inputs is None:
        return None
    try:
        with torch.no_grad(), evaluating(model), fitting("example_inputs", inputs):
            trace = watch(model, on_device_of(model, _copied(inputs)))
    except Exception:
        if example_inputs is not None:
            raise
        return None  # what transformers has for all models does not fit this one
    return find_products(model, [trace])


def ways_through(module: nn.Module) -> list[fx.Graph] | None:
    """The graphs of the ways that the forward of ``module`` itself, not of what it calls, has for other values or shapes.

    It is traced with values that have none, once for each outcome of its conditions. None where these are too many, or a way
    cannot be traced; no graph at all where the forward has no conditions, or cannot be traced for another reason.
    """
    found: list[fx.Graph] = []
    tracer = _WayTracer()
    while not isinstance(module, nn.Sequential):
        before = attributes(module)
        try:
            found.append(tracer.trace(module))
        except Exception:  # noqa: BLE001 - code of the user's ran on things that are no tensors
            return None if tracer.outcomes else []
        finally:
            restore(before)
        if len(found) > _MOST_WAYS:
            return None
        if not tracer.turn():
            break
    return found if len(found) > 1 else []


def traced_functions(model: nn.Module) -> tuple[Trace, list[str]]:
    """The functions that forwards call, for models that no data ran through, and the classes whose forward hides them.

    One module of each class is traced, calls of other modules as they are; modules of torch itself call none to tell of.
    """
    trace, known = Trace(), dict[type[nn.Module], list[str] | None]()
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.", "neural_compressor.")):
            continue
        if kind not in known:
            known[kind] = _functions_of(module)
        trace.within += [Call(target, None, (), (), inside=name) for target in known[kind] or ()]
    return trace, [kind.__name__ for kind, found in known.items() if found is None]


def _functions_of(module: nn.Module) -> list[str] | None:
    before = attributes(module)
    try:
        nodes = _WayTracer().trace(module).nodes
    except Exception:  # noqa: BLE001 - code of the user's ran on things that are no tensors
        return None
    finally:
        restore(before)
    called = [node.target for node in nodes if node.op in ("call_function", "call_method")]
    return [target if isinstance(target, str) else getattr(target, "__name__", "") for target in called]


class _WayTracer(fx.Tracer):
    """Traces one forward, calls of other modules as they are; conditions come out as ``outcomes`` say, and new ones true."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[bool] = []
        self._asked = 0

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self._asked = 0
        return super().trace(root, concrete_args)

    def to_bool(self, obj: fx.Proxy) -> bool:
        if _in_assertion():
            return True
        if self._asked == _MOST_WAYS:
            return super().to_bool(obj)  # which raises
        if self._asked == len(self.outcomes):
            self.outcomes.append(True)
        self._asked += 1
        return self.outcomes[self._asked - 1]

    def turn(self) -> bool:
        """Have the last condition that came out true be false from now on; whether there is one."""
        del self.outcomes[self._asked :]
        while self.outcomes and not self.outcomes[-1]:
            self.outcomes.pop()
        if self.outcomes:
            self.outcomes[-1] = False
        return bool(self.outcomes)


def _between(graph: fx.Graph, name: str, others: Sequence[str]) -> frozenset[tuple[Any, ...]] | None:
    """What is done to what ``name`` gives until ``others`` read it; None where anything else does, or where that is far.

    Of a module inside one that is called, that one counts.
    """

    def calls(node: fx.Node, module: str) -> bool:
        return node.op == "call_module" and f"{module}.".startswith(f"{node.target}.")

    found = set[tuple[Any, ...]]()
    first = (user for node in graph.nodes if calls(node, name) for user in node.users)
    readers: list[tuple[fx.Node, tuple[Any, ...]]] = [(user, ()) for user in first]
    while readers:
        node, passed = readers.pop()
        if any(calls(node, other) for other in others):
            found.add(passed)
        elif not node.users or len(passed) == _FAR:
            return None
        else:
            readers += [(user, (*passed, node.target)) for user in node.users]
    return frozenset(found)


def _in_assertion() -> bool:
    """Whether the code outside of torch that is running now is a line that asserts something."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_filename == __file__ or "torch.fx" in frame.f_globals["__name__"]):
        frame = frame.f_back
    line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.strip().startswith("assert ")


def sharing_weights(model: nn.Module) -> nn.Module:
    """A copy with the parameters of ``model``, which folding replaces and never writes into."""
    return copy_of(model, {id(p): p for p in model.parameters()})


def _copied(inputs: Any) -> Any:
    """``inputs`` for one run, which may write into them."""
    return tree_map_only(torch.Tensor, torch.Tensor.clone, inputs)


def _again(model: nn.Module, run: Run) -> Any:
    """What ``model`` gives in the same run; None where it does not run."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.set_rng_state(run.rng)
        try:
            args, kwargs = _copied((run.args, run.kwargs))
            return model(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None


def same_outputs(found: Any, expected: Any) -> bool:
    """Whether two outputs of a model are the same but for the order of float arithmetic."""
    pairs = list(zip(tensors_in(found), tensors_in(expected), strict=False))
    return len(pairs) == sum(1 for _ in tensors_in(expected)) and all(_close(a, b) for a, b in pairs)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not b.is_floating_point():
        return True  # where the floats that it comes from are as good as equal, so is what is counted or chosen by them
    # Norms compute in float32 in models of float64, too.
    eps = max(torch.finfo(kind).eps for kind in (b.dtype, torch.float32))
    allowed = min(_ROUNDING * eps, 0.1)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return False
    a, b = a[finite].double(), b[finite].double()
    return bool((a - b).norm() <= allowed * b.norm())
