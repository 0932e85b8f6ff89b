"""Export: a PyTorch model as a graph of ATen operators, with the dimensions that can vary found by the export itself."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils import _pytree as pytree

from neural_compressor.errors import ConfigError, NeuralCompressorError
from neural_compressor.torch.batches import describe
from neural_compressor.torch.checks import require_module, require_values
from neural_compressor.torch.hooks import buffers_kept, evaluating
from neural_compressor.torch.pt2e.exported import (
    Exported,
    FixedDimension,
    InputTensor,
    Source,
    exported_of,
    mark,
    remember_source,
    set_state,
    state_of,
)
from neural_compressor.torch.pt2e.in_place import read_behind_writes
from neural_compressor.torch.pt2e.int8_forms import (
    contiguous_inputs,
    holds_nested_graphs,
    inline_contexts,
    linear_products,
    number_padding,
    strip_checks,
)

logger = logging.getLogger("neural_compressor")

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def export(model: nn.Module, example_inputs: Any, dynamic_shapes: Any = None) -> nn.Module:
    """``model`` as a graph for ``prepare``, ``convert`` and ``torch.compile``.

    ``example_inputs`` is a tensor, a tuple of positional arguments, a dict of keyword arguments or ``(args, kwargs)``.
    Without ``dynamic_shapes`` (as :func:`torch.export.export` takes them) batch and sequence dimensions vary if the model
    lets them; those that could not are logged, and are the attribute ``fixed_dimensions`` of the result. A decoder of
    transformers is exported without its cache.

    A model that cannot be exported is returned as it is, with the reason logged: ``prepare`` and ``convert`` then run it on
    eager kernels.

    >>> exported = export(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.ones(1, 4))
    >>> exported(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """
    require_module(model, "export")
    if exported_of(model) is not None:
        raise ConfigError("export: the model is exported already; prepare it")
    require_values(model)
    given = _each_once(arguments_of(example_inputs))
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(buffers_kept(model))
        stack.enter_context(without_cache(model))
        stack.enter_context(torch.no_grad())
        _check_runs(model, given)
        try:
            program, inputs = _exported(model, given, dynamic_shapes)
        except NeuralCompressorError:
            raise
        except Exception as error:
            if dynamic_shapes is not None and _is_about_shapes(error):
                raise ConfigError(f"export: dynamic_shapes do not fit the model: {_first_line(error)}") from error
            return _as_it_is(model, failure(model, error))
    new = program.module()
    set_state(new, state_of(new))
    inline_contexts(new)
    if holds_nested_graphs(new):  # of which torchao's conversion loses the inner one
        return _as_it_is(model, "a branch, a loop, or what runs under autocast is inside of another")
    strip_checks(new)
    read_behind_writes(new)
    number_padding(new)
    linear_products(new)
    contiguous_inputs(new)
    new.recompile()
    known = _known(model, program, inputs)
    for fixed in known.fixed:
        logger.info("exported %s: %s", type(model).__name__, fixed)
    remember_source(new, Source(model, given, dynamic_shapes, dict(model.named_parameters())))
    return mark(new, known)


def _as_it_is(model: nn.Module, why: str) -> nn.Module:
    logger.warning(
        "%s cannot be exported: %s. It is returned as it is: prepare and convert quantize it with eager kernels",
        type(model).__name__,
        why,
    )
    return model


def arguments_of(example_inputs: Any) -> Inputs:
    """Example inputs as positional and keyword arguments.

    >>> arguments_of({"a": 1}), arguments_of((1, 2)), arguments_of(((1,), {"b": 2}))
    (((), {'a': 1}), ((1, 2), {}), ((1,), {'b': 2}))
    """
    if example_inputs is None:
        raise ConfigError(
            "export: example_inputs is None; give a tensor, a tuple of arguments, or a dict of keyword arguments"
        )
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        if len(example_inputs) == 2 and isinstance(example_inputs[0], (tuple, list)):
            args, kwargs = example_inputs
            if isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs):
                return tuple(args), dict(kwargs)
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _each_once(inputs: Inputs) -> Inputs:
    """``inputs`` with a copy of each tensor that was given before: torch.export takes two such inputs for one."""
    seen: set[int] = set()

    def once(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        known = id(leaf) in seen
        seen.add(id(leaf))
        return leaf.clone() if known else leaf

    args, kwargs = pytree.tree_map(once, inputs)
    return args, kwargs


def _check_runs(model: nn.Module, inputs: Inputs) -> None:
    """Refuse inputs on which the model itself does not run: no export could."""
    try:
        model(*inputs[0], **inputs[1])
    except Exception as error:
        raise ConfigError(
            f"export: example_inputs do not fit the model: {describe(inputs)}; it raised {type(error).__name__}: "
            f"{_first_line(error)}{_where(model, error)}"
        ) from error


def _exported(model: nn.Module, given: Inputs, dynamic_shapes: Any) -> tuple[torch.export.ExportedProgram, Inputs]:
    """The program, and the inputs it was made with: export takes a size of 1 for a constant, so larger ones come first."""
    if dynamic_shapes is not None:
        return _traced(model, given, dynamic_shapes), given
    larger = _doubled(model, given)
    for inputs in [given] if larger is None else [larger, given]:
        try:
            return _traced(model, inputs, _automatic), inputs
        except Exception as error:  # noqa: BLE001
            logger.debug("export of %s with %s: %s", type(model).__name__, describe(inputs), error)
    return _traced(model, given, None), given


def _traced(model: nn.Module, inputs: Inputs, dynamic_shapes: Any) -> torch.export.ExportedProgram:
    # Where it fails it prints all of the graph that there is; what counts is said in one line.
    printed = io.StringIO()
    try:
        with redirect_stderr(printed), _keywords_named(model, inputs):
            shapes = dynamic_shapes(model, inputs) if callable(dynamic_shapes) else dynamic_shapes
            program = torch.export.export(model, *inputs, dynamic_shapes=shapes)
    except Exception:
        logger.debug("export of %s printed: %s", type(model).__name__, printed.getvalue())
        raise
    sys.stderr.write(printed.getvalue())
    return program


@contextmanager
def _keywords_named(model: nn.Module, inputs: Inputs) -> Iterator[None]:
    """A forward whose signature names the keywords that it takes as ``**kwargs``: torch.export would fix all dimensions."""
    signature = inspect.signature(model.forward)
    others = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [name for name in inputs[1] if name not in [p.name for p in others]]
    if not named:
        yield
        return
    own, held = model.forward, vars(model).get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in named]
    forward.__signature__ = signature.replace(parameters=[*others, *keywords])  # type: ignore[attr-defined]
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
        if held is not None:
            model.forward = held


def _doubled(model: nn.Module, inputs: Inputs) -> Inputs | None:
    """``inputs`` with two samples where they have one, if the model runs on that."""
    leaves, spec = pytree.tree_flatten(inputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
    if not tensors or any(len(tensor) != 1 for tensor in tensors):
        return None
    new = [torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(new, spec)
    try:
        model(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - then its batch is fixed
        logger.debug("%s does not run on two samples: %s", type(model).__name__, error)
        return None
    return args, kwargs


def _automatic(model: nn.Module, inputs: Inputs) -> Any:
    """Batch and sequence dimensions left to the export, in the form that it takes them."""

    def dimensions(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        # What has the rank of token ids or of hidden states has a sequence behind the batch; images have channels there.
        has_sequence = leaf.dim() == 3 or (leaf.dim() == 2 and not leaf.is_floating_point())
        tried = (0, 1) if has_sequence else (0,) if leaf.dim() else ()
        return dict.fromkeys(tried, torch.export.Dim.AUTO)

    args, kwargs = pytree.tree_map(dimensions, inputs)
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Models of transformers return a cache object unless their configuration says otherwise; no graph can hold one."""
    found: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in found if getattr(config, "use_cache", False) is True}
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


def _known(model: nn.Module, program: torch.export.ExportedProgram, inputs: Inputs) -> Exported:
    args, kwargs = inputs
    parameters = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    named = dict(zip(parameters, args, strict=False)) if len(args) <= len(parameters) else dict(enumerate(args))
    paths = pytree.tree_flatten_with_path({**{str(k): v for k, v in named.items()}, **kwargs})[0]
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    found = [node.meta.get("val") for node in placeholders if node.name in program.graph_signature.user_inputs]
    values = iter([value for value in found if isinstance(value, Tensor)])
    tensors, fixed, constants = [], [], []
    for path, leaf in paths:
        name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        if not isinstance(leaf, Tensor):
            constants.append((name, leaf))
            continue
        tensors.append(InputTensor(name, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")))
        sizes = next(values).shape
        # A size that the model came to fix stays a symbol, one with a single value.
        fixed += [FixedDimension(name, at, int(size)) for at, size in enumerate(sizes) if is_concrete_int(size)]
    positional = min(len(args), len(parameters))
    return Exported(tuple(parameters), positional, tuple(kwargs), tuple(tensors), tuple(fixed), tuple(constants))


# -- why an export failed ---------------------------------------------------------------------------------------------


def failure(model: nn.Module, error: Exception) -> str:
    """Why a model cannot be exported: what was raised, in which module, at which line of the user's code."""
    return f"{type(error).__name__}: {_first_line(error)}{_where(model, error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def _where(model: nn.Module, error: Exception) -> str:
    """The innermost line that is neither of torch nor of this package, with the module that was running there."""
    names = {module: name for name, module in model.named_modules()}
    running: nn.Module | None = None
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        first = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if isinstance(first, nn.Module) and first in names:
            running = first
        if _is_library(frame.f_code.co_filename):
            continue
        found = f"{frame.f_code.co_filename}, line {line}"
        if running is not None:
            kind, name = type(running).__name__, names[running]
            found = f"in {f'module {name!r} of type {kind}' if name else kind}, {found}"
    return f" ({found})" if found else ""


def _is_library(file: str) -> bool:
    parts = file.replace("\\", "/")
    return "/site-packages/torch/" in parts or "/neural_compressor/torch/" in parts or parts.startswith("<")


def _is_about_shapes(error: Exception) -> bool:
    return any(word in str(error) for word in ("dynamic_shapes", "Constraints violated", "dynamic shape", "Dim("))
