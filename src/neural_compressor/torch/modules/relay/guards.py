"""What a traced graph was traced under, and whether it still holds: attributes, submodules, kernels, hooks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.relay.tracing import Traced, plain

_CONTENT = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Guards:
    """Cheap to ask at every call: dictionaries are compared as wholes, their values by identity first."""

    def __init__(self, traced: Traced) -> None:
        root = traced.root
        called = {m: None for node in traced.graph.nodes if (m := traced.module(node)) is not None}
        modules = list(dict.fromkeys([*traced.inlined, *called]))
        self._hooks = [vars(m)[name] for m in modules if m is not root for name in _HOOKS]
        self._hooks += [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
        self._kernels = [(vars(m), m._settled) for m in modules if isinstance(m, QuantModule)]
        self._attributes = [(vars(m), _recorded(m)) for m in modules if not isinstance(m, QuantModule)]
        self._children = [(vars(m)["_modules"], dict(m._modules)) for m in traced.inlined]

    def unhooked(self) -> bool:
        """Whether nothing listens to the modules inside."""
        return not any(self._hooks)

    def hold(self) -> bool:
        """Whether everything is as it was when the graph was traced."""
        try:
            return (
                all(now["_settled"] is then for now, then in self._kernels)
                and all(now == then for now, then in self._attributes)
                and all(now == then for now, then in self._children)
            )
        except (RuntimeError, ValueError):  # a tensor or an array became another
            return False


def _recorded(module: nn.Module) -> dict[str, Any]:
    return {k: v if k in _CONTENT or k.endswith("_hooks") else plain(v) for k, v in vars(module).items()}
