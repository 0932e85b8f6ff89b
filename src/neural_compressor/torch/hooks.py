"""Context managers around a model while it runs: hooks of its modules, another forward, evaluation mode, buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

K = TypeVar("K", bound=Hashable)


@contextmanager
def hooked(
    modules: Mapping[K, nn.Module],
    before: Callable[..., None] | None = None,
    after: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Call ``before(key, module, args, kwargs)`` and ``after(key, module, args, kwargs, output)`` around ``modules``.

    What ``after`` returns, unless that is None, takes the place of the output. Modules of ``torch.jit.script`` take no
    hooks, and run without.

    >>> import torch
    >>> with hooked({"fc": (layer := nn.Linear(2, 3))}, after=lambda *call: print(call[0], call[-1].shape)):
    ...     _ = layer(torch.ones(1, 2))
    fc torch.Size([1, 3])
    """
    with ExitStack() as stack:
        for key, module in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if before is not None:
                stack.callback(module.register_forward_pre_hook(partial(before, key), with_kwargs=True).remove)
            if after is not None:
                stack.callback(module.register_forward_hook(partial(after, key), with_kwargs=True).remove)
        yield


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """``module`` with another forward meanwhile."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model`` in evaluation mode and :func:`calling_layers` meanwhile; each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with calling_layers(model):
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """``model`` free to write into its buffers meanwhile; they have the values they had when this ends.

    >>> norm = nn.BatchNorm1d(1)
    >>> with buffers_kept(norm):
    ...     _ = norm(torch.tensor([[1.0], [3.0]]))
    >>> norm.running_mean.item()
    0.0
    """
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, values in kept:
                module._buffers[name] = buffer
                if not torch.equal(buffer, values):
                    buffer.copy_(values)


_AS_WRITTEN = {"activation_relu_or_gelu": 0, "use_nested_tensor": False}
"""What the encoders of torch look at before they take their fused path."""


def call_layers(model: nn.Module) -> None:
    """Have ``nn.TransformerEncoder`` call its layers: its fused path reads their weights without calling them.

    It also makes nested tensors of padded inputs, which hardly any function takes.
    """
    for module, name, _ in _fused(model):
        setattr(module, name, _AS_WRITTEN[name])


@contextmanager
def calling_layers(model: nn.Module) -> Iterator[None]:
    """As :func:`call_layers`, meanwhile."""
    fused = _fused(model)
    call_layers(model)
    try:
        yield
    finally:
        for module, name, value in fused:
            setattr(module, name, value)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """What ``torch.compile`` made of parts of ``model`` runs as it was written meanwhile: compiled code skips new hooks."""
    compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules())
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        yield


def _fused(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    encoders = [m for m in model.modules() if isinstance(m, (nn.TransformerEncoder, nn.TransformerEncoderLayer))]
    return [(each, name, vars(each)[name]) for each in encoders for name in _AS_WRITTEN if name in vars(each)]
