"""A forward that is set on a module object, and gives way to that of the module's class."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


class ObjectForward:
    """The attribute ``forward`` of a module: state, class, hooks and files of the module stay what they are."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        #: Why the module runs its own forward; empty where it does not.
        self.reason = ""

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"])  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        return self.own(*args, **kwargs)

    def own(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the module's class."""
        return type(self.module).forward(self.module, *args, **kwargs)

    def install(self) -> None:
        """Let the module call this."""
        self.module.forward = self

    def remove(self) -> None:
        """Let the module call the forward of its class again."""
        if vars(self.module).get("forward") is self:
            del self.module.__dict__["forward"]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.module).forward.__get__(self.module))

    def __getattr__(self, name: str) -> Any:
        """What a method has beside: ``torch.export`` reads the place of its code."""
        if name in ("__code__", "__globals__", "__name__", "__qualname__"):
            return getattr(type(self.module).forward, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
