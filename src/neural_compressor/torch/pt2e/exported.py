"""What an exported model knows of its inputs: how it is called, and which dimensions can vary."""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.torch.quantized_model import Quantization

_KEY = "neural_compressor.exported"
_SOURCE = "neural_compressor.source"


@dataclass(frozen=True)
class FixedDimension:
    """A dimension of an input that an exported model takes in one size only.

    >>> print(FixedDimension("pixel_values", 2, 224))
    pixel_values: dimension 2 is 224
    """

    name: str
    dimension: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}: dimension {self.dimension} is {self.size}"


@dataclass(frozen=True)
class InputTensor:
    """A tensor among the inputs of an exported model, with the sizes it was exported with."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Exported:
    """How an exported model is called.

    ``parameters`` are those of the forward it was exported from, in their order; the first ``positional`` are given by
    position, ``keywords`` by name. ``fixed`` are the dimensions of ``tensors`` that have to stay as they are, ``constants``
    the inputs that are no tensors, whose values are in the graph.
    """

    parameters: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    tensors: tuple[InputTensor, ...]
    fixed: tuple[FixedDimension, ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Exported:
        """What :func:`dataclasses.asdict` made a dict of, and JSON lists."""
        return cls(
            tuple(data["parameters"]),
            int(data["positional"]),
            tuple(data["keywords"]),
            tuple(InputTensor(each["name"], tuple(each["shape"]), each["dtype"]) for each in data["tensors"]),
            tuple(FixedDimension(**each) for each in data["fixed"]),
            tuple((name, value) for name, value in data["constants"]),
        )

    def arranged(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call in the places where the graph has them; None for an input that it does not have is left out.

        >>> Exported(("ids", "mask"), 0, ("ids",), ()).arranged((1,), {"mask": None})
        ((), {'ids': 1})
        """
        given = dict(zip(self.parameters, args, strict=False)) if len(args) <= len(self.parameters) else {}
        if len(given) != len(args) or set(given) & set(kwargs):
            return args, dict(kwargs)  # the call itself says best what is wrong
        given |= kwargs
        wanted = [*self.parameters[: self.positional], *self.keywords]
        for name in [name for name in given if name not in wanted]:
            if given[name] is not None and not (name == "use_cache" and given[name] is False):
                raise ConfigError(
                    f"the model was exported with the inputs {', '.join(wanted)}, and is called with {name!r} too: "
                    f"export it with {name!r} among example_inputs"
                )
        if missing := [name for name in wanted if name not in given]:
            raise ConfigError(f"the model was exported with the inputs {', '.join(wanted)}; {missing[0]!r} is missing")
        return tuple(given[name] for name in wanted[: self.positional]), {name: given[name] for name in self.keywords}

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse tensors with another size in a dimension that stayed fixed, and other values of constants."""
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        values = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        for (name, constant), value in zip(self.constants, values, strict=False):
            if value != constant:
                raise ConfigError(
                    f"input {name!r} is {value!r}; the model was exported with {constant!r}, which is part of its graph"
                )
        if len(found) != len(self.tensors):
            return
        shapes = {known.name: tensor.shape for known, tensor in zip(self.tensors, found, strict=True)}
        for known in self.tensors:
            if len(shapes[known.name]) != len(known.shape):
                raise ConfigError(
                    f"input {known.name!r} has {len(shapes[known.name])} dimensions; the model was exported with "
                    f"{len(known.shape)}, of the shape {known.shape}"
                )
        for fixed in self.fixed:
            if shapes[fixed.name][fixed.dimension] != fixed.size:
                raise ConfigError(
                    f"input {fixed.name!r} is {shapes[fixed.name][fixed.dimension]} in dimension {fixed.dimension}, which "
                    f"stayed {fixed.size} when the model was exported; export it with inputs of the size you need"
                )

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """As a hook before the forward of the model; what is compiled is guarded by the compiler, at a cost each call."""
        as_exported = len(args) == self.positional and tuple(kwargs) == self.keywords
        arranged = (args, kwargs) if as_exported else self.arranged(args, kwargs)
        if not torch.compiler.is_compiling():
            self.check(*arranged)
        return arranged


@dataclass(frozen=True, eq=False)
class Source:
    """What a graph was exported from, and with which arguments; copies of the graph refer to the same model."""

    model: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    dynamic_shapes: Any
    parameters: Mapping[str, nn.Parameter]

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self

    @property
    def is_unchanged(self) -> bool:
        """Whether the model still has the weights that the graph was exported with."""
        now = dict(self.model.named_parameters())
        return now.keys() == self.parameters.keys() and all(now[name] is p for name, p in self.parameters.items())


def unchanged_source(model: GraphModule, steps: Sequence[str]) -> Source:
    """What a float graph was exported from, which the passes ``steps`` run on; an error where that is another model now."""
    found = model.meta.get(_SOURCE)
    assert isinstance(found, Source)
    if not found.is_unchanged:
        raise ConfigError(
            f"passes of the plan ({', '.join(steps)}) run on the model that the graph was exported from, which has other "
            "weights now: export it again"
        )
    return found


def remember_source(model: GraphModule, source: Source) -> None:
    """Have graphs that are made of ``model`` know where it comes from, until they are quantized."""
    model.meta[_SOURCE] = source


def exported_of(model: Any) -> Exported | None:
    """What is known of the inputs of a model that :func:`export` returned, or that was made of one; None of others."""
    found = model.meta.get(_KEY) if isinstance(model, GraphModule) else None
    return found if isinstance(found, Exported) else None


def mark(model: GraphModule, exported: Exported) -> GraphModule:
    """``model`` called as ``exported`` says; a graph module that was made of another has lost that."""
    if exported not in model._forward_pre_hooks.values():
        model.meta[_KEY] = exported
        model.fixed_dimensions = exported.fixed  # type: ignore[assignment]
        model.register_forward_pre_hook(exported, with_kwargs=True)
        model._deepcopy_hooks = [_Held(model)]
    model.train = partial(_train, model)  # type: ignore[method-assign]
    model.eval = partial(_train, model, False)  # type: ignore[method-assign]
    model._apply = partial(_apply, model)  # type: ignore[method-assign]
    return model


_OWN = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "train", "eval", "_apply", "fixed_dimensions"),
    *("quantization", "save", "_prepared"),
)
"""What a graph module of ours has beside its graph and tensors."""


class _Held:
    """Gives a deep copy of a graph module what torch copies and leaves out of the graph module it makes."""

    def __init__(self, model: GraphModule) -> None:
        self.attributes = vars(model)

    def __call__(self, copied: GraphModule) -> None:
        # torch calls what the original has; the copy of that, which the copy has, holds what was copied.
        held = next(hook.attributes for hook in copied._deepcopy_hooks if isinstance(hook, _Held))
        vars(copied).update({name: held[name] for name in _OWN if name in held})
        if "forward" in held:
            copied.forward = torch.no_grad()(copied.forward)


def shared(model: GraphModule) -> GraphModule:
    """A graph of its own over the same tensors, but for those that it writes into; so are graphs in it (branches, loops)."""
    with without_warnings():
        new = GraphModule(model, copy.deepcopy(model.graph))
    new.meta = dict(model.meta)
    for name, inner in model.named_children():
        if isinstance(inner, GraphModule):
            setattr(new, name, shared(inner))
    set_state(new, state_of(new))
    return new


def state_of(model: GraphModule) -> dict[str, torch.Tensor]:
    """Copies of the buffers that the graph writes into as it runs, by name: one copy under all names of a buffer."""
    written, buffers = _written(model), dict(model.named_buffers(remove_duplicate=False))
    copies = {id(buffer): buffer.detach().clone() for name, buffer in buffers.items() if name in written}
    return {name: copies[id(buffer)] for name, buffer in buffers.items() if id(buffer) in copies}


def set_state(model: GraphModule, state: Mapping[str, torch.Tensor]) -> None:
    """Give ``model`` buffers of its own with the values of ``state``: written into, those of others would change these."""
    own = {id(values): values.clone() for values in state.values()}
    for target, values in state.items():
        owner, _, name = target.rpartition(".")
        model.get_submodule(owner)._buffers[name] = own[id(values)]


def _written(model: GraphModule) -> set[str]:
    """The names of the tensors that operators of a graph write into, through views of them too."""
    found: set[str] = set()
    stored: dict[Node, str] = {}
    for node in model.graph.nodes:
        if node.op == "get_attr":
            stored[node] = node.target
        elif node.target is operator.getitem and node.args[0] in stored:
            stored[node] = stored[node.args[0]]
        elif isinstance(node.target, torch._ops.OpOverload):
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is None or value not in stored:
                    continue
                stored[node] = stored[value]
                if argument.alias_info.is_write:
                    found.add(stored[value])
    return found


def copied(model: GraphModule) -> GraphModule:
    """A graph of its own over tensors of its own."""
    new = shared(model)
    memo: dict[int, Any] = {}
    for module in new.modules():
        module._parameters = copy.deepcopy(module._parameters, memo)
        module._buffers = copy.deepcopy(module._buffers, memo)
    return mark(new, require_exported(model))


def finished(model: GraphModule, exported: Exported, done: Quantization) -> GraphModule:
    """A quantized graph, which runs without gradients: with them Inductor freezes no weights, and uses no int8 kernel."""
    _own_parameters(model)
    model.meta.pop(_SOURCE, None)  # it holds the float weights
    model.forward = torch.no_grad()(model.forward)
    model.quantization = done  # type: ignore[assignment]
    return mark(model, exported)


def _own_parameters(model: GraphModule) -> None:
    """Parameters without gradients over the same values; those there were are the eager model's too."""
    own: dict[nn.Parameter, nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for name, known in module._parameters.items():
            if known is not None:
                own[known] = own[known] if known in own else nn.Parameter(known.detach(), requires_grad=False)
                module._parameters[name] = own[known]


def _train(model: GraphModule, mode: bool = True) -> GraphModule:
    """In place of ``train`` and ``eval``, which would change nothing in a graph."""
    if mode:
        raise ConfigError("the model was exported in evaluation mode, and its graph cannot be trained")
    return model


def _apply(model: GraphModule, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> GraphModule:
    """In place of what ``to`` and ``bfloat16`` call: data types are written into a graph, and stay."""
    for dtype in {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}:
        if (other := fn(torch.empty(0, dtype=dtype)).dtype) != dtype:
            raise ConfigError(
                f"the graph computes in {dtype}, as the model was exported, and cannot be moved to {other}: move the model "
                "itself, and export it again"
            )
    nn.Module._apply(model, fn, recurse)  # type: ignore[no-untyped-call]
    return model


@contextmanager
def without_warnings() -> Iterator[None]:
    """torch and torchao warn of what is planned, layers in front of which nothing is quantized, and of deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def torchao_required() -> Iterator[None]:
    """Around imports of modules that need torchao, which only exported models do.

    It warns of kernels for GPUs and of calls of its own that are deprecated, which no user of these modules can mend.
    """
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with without_warnings():
            yield
    except ImportError as error:
        raise MissingDependencyError(
            f"exported models are quantized by torchao, which cannot be imported ({error}); install it with: "
            "pip install 'open-neural-compressor[torch]'"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def is_exported(model: Any) -> bool:
    """Whether a model is a graph that :func:`export` made; one that torch.export made by itself is refused.

    A graph of modules, as torch.fx traces it, is run like any other model.
    """
    if not isinstance(model, GraphModule) or exported_of(model) is not None:
        return isinstance(model, GraphModule)
    if any(isinstance(node.target, torch._ops.OpOverload) for node in model.graph.nodes):
        raise ConfigError(
            "the model is a graph of operators that does not come from neural_compressor.torch.export.export; give that "
            "function the torch.nn.Module and example_inputs, and prepare what it returns"
        )
    return False


def require_exported(model: GraphModule) -> Exported:
    """What is known of an exported model."""
    is_exported(model)
    found = exported_of(model)
    assert found is not None
    return found
