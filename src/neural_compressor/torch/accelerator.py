"""The device that models run on: the first of HPU, XPU, CUDA and CPU that is there, or what ``INC_TARGET_DEVICE`` says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

VARIABLE = "INC_TARGET_DEVICE"


def _has_hpu() -> bool:
    if find_spec("habana_frameworks") is None:
        return False
    import_module("habana_frameworks.torch.core")  # which adds torch.hpu
    hpu: Any = getattr(torch, "hpu", None)
    return hpu is not None and bool(hpu.is_available())


def _has_xpu() -> bool:
    return torch.xpu.is_available()


_KINDS: Mapping[str, Callable[[], bool]] = {
    "hpu": _has_hpu,
    "xpu": _has_xpu,
    "cuda": torch.cuda.is_available,
    "cpu": lambda: True,
}
"""Kinds of device in the order in which they are looked for, and whether there is one."""


@dataclass(frozen=True)
class Accelerator:
    """A kind of device; what the CPU has none of is nothing there."""

    kind: str

    def name(self) -> str:
        """``hpu``, ``xpu``, ``cuda`` or ``cpu``."""
        return self.kind

    def is_available(self) -> bool:
        """Whether the machine has one."""
        return _KINDS[self.kind]()

    def device(self, index: int | None = None) -> torch.device:
        """The device of that number, or the current one."""
        return torch.device(self.kind) if index is None or self.kind == "cpu" else torch.device(self.kind, index)

    def device_count(self) -> int:
        """How many there are."""
        return 1 if self.kind == "cpu" else int(self._module.device_count())

    def current_device(self) -> int | str:
        """The number of the current device; ``"cpu"`` for the CPU."""
        return "cpu" if self.kind == "cpu" else int(self._module.current_device())

    def current_device_name(self) -> str:
        """The current device as torch spells it."""
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.current_device()}"

    def device_name(self, index: int) -> str:
        """A device by its number as torch spells it."""
        return str(self.device(index))

    def set_device(self, index: int) -> None:
        """Make another device the current one."""
        if self.kind != "cpu":
            self._module.set_device(index)

    def synchronize(self) -> None:
        """Wait for what runs."""
        if self.kind != "cpu":
            self._module.synchronize()

    def empty_cache(self) -> None:
        """Give memory back that is held and not used."""
        if self.kind != "cpu":
            self._module.empty_cache()

    @property
    def _module(self) -> Any:
        return getattr(torch, self.kind)


def auto_detect_accelerator(device_name: str = "auto") -> Accelerator:
    """The accelerator called ``device_name``; ``auto`` is what ``INC_TARGET_DEVICE`` says, or the first that is there.

    >>> auto_detect_accelerator("cpu").current_device_name()
    'cpu'
    """
    said = os.environ.get(VARIABLE, "").strip()
    source = f"the environment variable {VARIABLE}" if device_name == "auto" and said else "device_name"
    wanted = (said or "auto") if device_name == "auto" else device_name
    if not isinstance(wanted, str):
        raise ConfigError(f"device_name is {wanted!r}; expected auto or one of {', '.join(_KINDS)}")
    kind = wanted.lower().partition(":")[0]
    if kind == "auto":
        return Accelerator(next(name for name, is_there in _KINDS.items() if is_there()))
    if kind not in _KINDS:
        raise ConfigError(f"{source} is {wanted!r}, which is no device known here; {close_matches(kind, _KINDS)}")
    if not _KINDS[kind]():
        there = ", ".join(name for name, is_there in _KINDS.items() if is_there())
        raise ConfigError(f"{source} is {wanted!r}, and this machine has none; there is: {there}")
    return Accelerator(kind)


def target_device() -> torch.device | None:
    """The device that ``INC_TARGET_DEVICE`` names; None where it is not set."""
    said = os.environ.get(VARIABLE, "").strip()
    try:
        return device_named(said) if said else None
    except ConfigError as error:
        raise ConfigError(f"the environment variable {VARIABLE}: {error}") from None


def device_named(name: str) -> torch.device:
    """The device that ``name`` stands for: ``"auto"``, a kind, a kind and a number, or the number of an accelerator.

    >>> device_named("cpu")
    device(type='cpu')
    """
    kind, _, number = ("auto", ":", name) if name.isdecimal() else name.partition(":")
    found = auto_detect_accelerator(kind)
    if not number:
        return found.device()
    if name.isdecimal() and found.name() == "cpu":
        raise ConfigError(
            f"the device {name!r} is the number of an accelerator, and this machine has none; 'cpu' is there"
        )
    if not number.isdecimal() or int(number) >= found.device_count():
        raise ConfigError(f"the device is {name!r}, and of {found.name()} there are {found.device_count()}, from 0 on")
    return found.device(int(number))


def follow_inputs(model: nn.Module, moved: Callable[[torch.device], None]) -> Callable[[], None]:
    """Let a model that is on the CPU move to where the data of its first call is; ``moved`` is told so before the call.

    What is returned ends that where there was no call.
    """

    def follow(module: nn.Module, args: Any, kwargs: Any) -> None:
        handle.remove()
        given = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        own = {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}
        if own == {"cpu"} and len(given) == 1 and (device := given.pop()).type not in ("cpu", "meta"):
            module.to(device)
            moved(device)

    handle = model.register_forward_pre_hook(follow, prepend=True, with_kwargs=True)
    return handle.remove
