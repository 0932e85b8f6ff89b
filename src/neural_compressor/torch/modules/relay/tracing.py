"""The graph of a module's forward, traced symbolically, and whether it may be run in place of that forward.

Quantized modules, those of ``torch.nn`` and modules that cannot be traced themselves are single calls of the graph. Control
flow on values or shapes raises in the tracer; what it would get wrong in silence (a tensor made in the forward, an
attribute that is written, values changed in place that something else reads) is refused here.
:class:`Guards` tell whether all it was traced under still holds.
"""

from __future__ import annotations

import inspect
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module

from neural_compressor.errors import NeuralCompressorError
from neural_compressor.torch.modules import QuantModule

_LAYOUT = ("stride", "is_contiguous", "data_ptr", "storage_offset", "as_strided", "storage", "untyped_storage")
_IN_PLACE_FUNCTIONS = (
    operator.iadd,
    operator.imul,
    operator.isub,
    operator.itruediv,
    torch.relu_,
    F.relu_,
    F.hardtanh_,
)
_FRESH_MODULES = (
    *(QuantModule, nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm),
    *(nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd),
)
_FRESH_FUNCTIONS = (
    operator.add,
    operator.mul,
    operator.sub,
    operator.truediv,
    torch.add,
    torch.mul,
    torch.relu,
    torch.cat,
)


Attributes = dict[nn.Module, dict[str, tuple[Any, Any]]]
"""Of each module its attributes by name: each as it is, and what it holds where that is a container."""


class TraceError(NeuralCompressorError):
    """Why a forward cannot be run from its graph."""


@dataclass
class Traced:
    """A graph over the submodules of ``root``; ``opaque`` says why some of these are calls although they have children."""

    root: nn.Module
    graph: fx.Graph
    opaque: dict[str, str] = field(default_factory=dict)
    inlined: list[nn.Module] = field(default_factory=list)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module a node calls."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # else a branch on the value of a buffer would be taken once and for all

    def __init__(self, given: Collection[str]) -> None:
        super().__init__()
        self.given = given
        # While a model is traced, fx has its hands on the modules of all threads.
        self._thread = threading.get_ident()
        self.opaque: dict[str, str] = {}
        self.inlined: list[nn.Module] = []
        self._parameters: dict[str, Any] = {}

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Placeholders for the arguments that are given; the others keep their defaults."""
        placeholders: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(root_fn).parameters.items())[1:]:
            if name in self.given:
                if (
                    parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
                    and parameter.kind is not parameter.KEYWORD_ONLY
                ):
                    raise TraceError(f"its argument {name!r} has no name of its own")
                placeholders[name] = self.create_proxy("placeholder", name, (), {})
        return (lambda: root_fn(self.root, **placeholders)), []

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        self._parameters = parameter_proxy_cache
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter):
            known = any(a is buffer for buffer in self.root.buffers()) or a in self.tensor_attrs
            if not known:
                raise TraceError("it makes a tensor that does not depend on its inputs")
        return super().create_arg(a)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, QuantModule) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if not self.is_leaf_module(m, name) and name not in self.opaque:
            before = next(iter(reversed(self.graph.nodes)), None)
            try:
                result = forward(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any code of the user's may run here, on things that are no tensors
                self.opaque[name] = _said(error)
                self._roll_back(before)
            else:
                self.inlined.append(m)
                return result
        return self.create_proxy("call_module", name, args, kwargs)

    def _roll_back(self, last: fx.Node | None) -> None:
        for node in list(reversed(self.graph.nodes)):
            if node is last:
                break
            self.graph.erase_node(node)
        self._parameters.clear()


def _said(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def trace(root: nn.Module, given: Collection[str]) -> Traced:
    """The graph of ``root`` called with tensors for the arguments ``given``; an error says why there is none."""
    before = attributes(root)
    tracer = _Tracer(given)
    try:
        graph = tracer.trace(root)
    except Exception as error:
        raise TraceError(_said(error)) from error
    finally:
        changed = restore(before)
    if changed:
        raise TraceError(f"its forward writes the attribute {changed!r}")
    traced = Traced(root, graph, tracer.opaque, [root, *tracer.inlined])
    graph.eliminate_dead_code(lambda node: node.op not in ("get_attr",))
    _check(traced)
    return traced


# -- attributes -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """What an attribute is compared with later: containers may change while they stay the same object."""
    return value.copy() if type(value) in (list, dict, set) else value


def attributes(root: nn.Module) -> Attributes:
    """The attributes of every module under ``root``."""
    return {module: {name: (value, plain(value)) for name, value in vars(module).items()} for module in root.modules()}


def restore(before: Attributes) -> str:
    """Undo what a forward in the tracer did to attributes; returns the name of one that it changed."""
    changed = ""
    for module, known in before.items():
        now = vars(module)
        for name in [n for n in now if n not in known]:
            del now[name]
            changed = name
        for name, (value, content) in known.items():
            if name in now and now[name] is value and _holds(value, content):
                continue
            now[name] = value
            if type(value) is list:
                value[:] = content
            elif type(value) in (dict, set):
                value.clear()
                value.update(content)
            changed = name
    return changed


def _holds(value: Any, content: Any) -> bool:
    """Whether what is in a container is the same objects: to compare proxies of the tracer would be traced too."""
    if type(value) is dict:
        return list(value) == list(content) and all(value[key] is content[key] for key in content)
    if type(value) is list:
        return len(value) == len(content) and all(a is b for a, b in zip(value, content, strict=True))
    if type(value) is set:  # a copy may have another order
        return set(map(id, value)) == set(map(id, content))
    return True


# -- what must not be in a graph --------------------------------------------------------------------------------------------


def _check(traced: Traced) -> None:
    order = {node: index for index, node in enumerate(traced.graph.nodes)}
    for node in order:
        name = str(node.target)
        if node.op == "call_method" and name in _LAYOUT:
            raise TraceError(f"it reads the memory layout of a tensor ({name})")
        if node.target in (operator.setitem, setattr) or "out" in node.kwargs:
            raise TraceError("it writes into a tensor")
        if writes_input(traced, node):
            for source in _memory(traced, node):
                if source.op == "placeholder" or len(source.users) > 1:
                    raise TraceError(f"{node.name} changes in place what something else reads")


def writes_input(traced: Traced, node: fx.Node) -> bool:
    """Whether a node changes its first argument."""
    module = traced.module(node)
    if module is not None:
        return bool(getattr(module, "inplace", False)) and not isinstance(module, nn.modules.dropout._DropoutNd)
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    return node.target in _IN_PLACE_FUNCTIONS or (bool(node.kwargs.get("inplace")) and node.target is not F.dropout)


def _memory(traced: Traced, node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose values may lie in the memory that ``node`` writes."""
    seen, waiting = set(), list(node.all_input_nodes[:1])
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        yield source
        if not isinstance(traced.module(source), _FRESH_MODULES) and source.target not in _FRESH_FUNCTIONS:
            waiting += source.all_input_nodes


_CONTENT = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def is_replaced(module: nn.Module) -> bool:
    """Whether someone listens to a module, or has set another forward on a quantized one."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return bool(hooked) or (isinstance(module, QuantModule) and "forward" in vars(module))


def compiled(graph: fx.Graph, name: str) -> Callable[..., Any]:
    """The function that ``graph`` is; its first argument is the module, and tracebacks call its code ``name``."""
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, f"<{name}>", "exec"), scope)
    found: Callable[..., Any] = scope["forward"]
    return found


class Guards:
    """Cheap to ask at every call: dictionaries are compared as wholes, their values by identity first."""

    def __init__(self, root: nn.Module, inlined: Sequence[nn.Module], called: Sequence[nn.Module]) -> None:
        modules = list(dict.fromkeys([*inlined, *called]))
        self._hooks = [vars(m)[name] for m in modules if m is not root for name in _HOOKS]
        self._hooks += [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
        self._kernels = [(vars(m), m._settled) for m in modules if isinstance(m, QuantModule)]
        attributes = [(vars(m), _recorded(m)) for m in modules if not isinstance(m, QuantModule)]
        children = [(vars(m)["_modules"], dict(m._modules)) for m in inlined]
        self._now, self._then = map(list, zip(*attributes, *children, strict=True))

    @classmethod
    def of(cls, traced: Traced) -> Guards:
        """Those of a graph."""
        return cls(traced.root, traced.inlined, [m for n in traced.graph.nodes if (m := traced.module(n)) is not None])

    def unhooked(self) -> bool:
        """Whether nothing listens to the modules inside, or stands in for quantized ones."""
        for now, _ in self._kernels:
            if "forward" in now:
                return False
        return not any(self._hooks)

    def hold(self) -> bool:
        """Whether everything is as it was when the graph was traced."""
        try:
            for now, then in self._kernels:
                if now["_settled"] is not then:
                    return False
            return self._now == self._then
        except (RuntimeError, ValueError):  # a tensor or an array became another
            return False


def _recorded(module: nn.Module) -> dict[str, Any]:
    return {k: v if k in _CONTENT or k.endswith("_hooks") else plain(v) for k, v in vars(module).items()}
