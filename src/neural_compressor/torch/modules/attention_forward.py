"""Attention of one new token in a dozen operators in place of fifty, with the same bits.

For one token all that the operators of an attention module cost is their call, and Python stands between. Whether a module
is one of those that ``attention_formula.py`` has a formula for is not taken from its name but tried; a module that is none
runs as it is. What becomes of the keys and values of earlier tokens is the business of the cache, which is called as ever.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.torch.modules.attention_formula import Attend, Call, is_rotary, tried
from neural_compressor.torch.modules.direct_product import is_watched
from neural_compressor.torch.modules.object_forward import ObjectForward
from neural_compressor.torch.modules.relay.tracing import Guards, TraceError, plain
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

_TRIALS = 8
"""A module that must be tried more often than this runs its own forward."""


class AttentionForward(ObjectForward):
    """The attribute ``forward`` of a module that may be an attention; one that is none gets rid of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._step: _Step | None = None
        self._trials = 0
        parameters = list(inspect.signature(type(module).forward).parameters.items())[1:]
        self._names = tuple(name for name, each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)

    @property
    def active(self) -> bool:
        """Whether a token is attended to by a formula."""
        return self._step is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_watched():
            return self.own(*args, **kwargs)
        names = self._names
        arguments = {**dict(zip(names, args, strict=False)), **kwargs} if args else kwargs.copy()
        x = arguments.pop(names[0], None) if 0 < len(names) >= len(args) else None
        if (
            type(x) is not Tensor
            or x.dim() != 3
            or x.shape[1] != 1
            or x.dtype is not torch.float32
            or not x.is_cpu
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
        ):
            return self.own(*args, **kwargs)
        step = self._step
        if step is None or not step.fits(x, arguments):
            step = self._find(x, arguments)
        if step is None or not step.guards.unhooked() or x.numel() > step.most_values:
            return self.own(*args, **kwargs)
        cos, sin = arguments[step.call.rotary]
        return step.attend(x, cos, sin, arguments[step.call.cache]), None

    def _find(self, x: Tensor, arguments: Mapping[str, Any]) -> _Step | None:
        """Learn what the module computes; None where this call does not show it, or it is something else."""
        if self._step is not None and not self._step.guards.hold():
            self._step = None  # which would keep weights in memory that the layers have not any more
        call = Call.of(x, arguments)
        if call is None or self.module.training:
            return None
        below = list(self.module.modules())[1:]
        guards = Guards(self.module, [self.module], below)
        most = min((each.most_rows for each in below if type(each) is WeightOnlyLinear), default=0) * x.shape[2]
        if not guards.unhooked() or not 0 < x.numel() <= most:
            return None
        self._step, self._trials = None, self._trials + 1
        try:
            if self._trials > _TRIALS:
                raise TraceError("its attributes or its arguments keep changing")
            attend = tried(self.module, self.own, call, arguments)
            kind, width = type(arguments[call.cache]), arguments[call.rotary][0].shape[2]
            self._step = _Step(attend, guards, Settings(self.module), kind, call, width, most)
        except TraceError as error:
            self.reason = str(error)
            self.remove()
        return self._step


@dataclass(frozen=True, eq=False)
class _Step:
    """What is computed for a token, and under which conditions."""

    attend: Attend
    guards: Guards
    settings: Settings
    cache_type: type
    call: Call
    width: int
    most_values: int

    def fits(self, x: Tensor, arguments: Mapping[str, Any]) -> bool:
        call = self.call
        if type(arguments.get(call.cache)) is not self.cache_type or len(arguments) != len(call.others) + 2:
            return False
        rotary = arguments.get(call.rotary)
        if not is_rotary(rotary, len(x)) or rotary[0].shape[2] != self.width:  # type: ignore[index]
            return False
        for name, known in call.others.items():
            if name not in arguments:
                return False
            value = arguments[name]
            if known is torch.int64:
                if type(value) is not Tensor or value.dtype is not known:
                    return False
            elif value is not known and (type(value) is not type(known) or value != known):
                return False
        return self.guards.hold() and self.settings.hold()


class Settings:
    """The attributes of objects that a module has, as its ``config``: they may change while the object stays."""

    def __init__(self, module: nn.Module) -> None:
        held = [value for value in vars(module).values() if type(value).__module__.partition(".")[0] != "torch"]
        found = [vars(value) for value in held if hasattr(value, "__dict__") and not _is_code(value)]
        self._now, self._then = found, [{k: plain(v) for k, v in each.items()} for each in found]

    def hold(self) -> bool:
        """Whether they are what they were."""
        try:
            return self._now == self._then
        except (RuntimeError, ValueError):  # a tensor or an array became another
            return False


def _is_code(value: Any) -> bool:
    return isinstance(value, (type, nn.Module, Tensor, ObjectForward)) or inspect.isroutine(value)


def may_be_attention(module: nn.Module) -> bool:
    """Whether a module with weight-only layers takes keys and values of the past, by the name all models have for them."""
    names = inspect.signature(type(module).forward).parameters
    return any(name.startswith("past_key_value") for name in names)
