"""Context managers around a model while it runs: hooks of its modules, another forward, evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from torch import nn

K = TypeVar("K", bound=Hashable)


@contextmanager
def hooked(
    modules: Mapping[K, nn.Module],
    before: Callable[..., None] | None = None,
    after: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Call ``before(key, module, args, kwargs)`` and ``after(key, module, args, kwargs, output)`` around ``modules``.

    What ``after`` returns, unless that is None, takes the place of the output.

    >>> import torch
    >>> with hooked({"fc": (layer := nn.Linear(2, 3))}, after=lambda *call: print(call[0], call[-1].shape)):
    ...     _ = layer(torch.ones(1, 2))
    fc torch.Size([1, 3])
    """
    with ExitStack() as stack:
        for key, module in modules.items():
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
    """``model`` in evaluation mode meanwhile; each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
