"""Outputs that are computed when somebody looks at them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from torch.utils._pytree import tree_map


class Deferred:
    """Stands for what ``run()`` gives, and calls it once, at the first use of any kind.

    It passes for the value itself: attributes, operators, ``isinstance``, functions of torch and numpy.

    >>> import torch
    >>> late = Deferred(lambda: torch.ones(2) * 3)
    >>> isinstance(late, torch.Tensor), (late + 1).tolist(), torch.sum(late).item(), late.shape
    (True, [4.0, 4.0], 6.0, torch.Size([2]))
    """

    __slots__ = ("_run", "_value")

    def __init__(self, run: Callable[[], Any]) -> None:
        object.__setattr__(self, "_run", run)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(value_of(self))

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tree_map(value_of, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(value_of(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(value_of(self), name, value)


def value_of(value: Any) -> Any:
    """What a :class:`Deferred` stands for; any other value itself."""
    if type(value) is not Deferred:
        return value
    run = object.__getattribute__(value, "_run")
    if run is not None:
        object.__setattr__(value, "_value", run())
        object.__setattr__(value, "_run", None)
    return object.__getattribute__(value, "_value")


def _handed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: function(*map(value_of, operands))


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda right, left: function(left, right)


_BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
_OPERATORS = "lt le eq ne gt ge contains getitem setitem delitem neg pos abs invert index iadd isub imul itruediv"
_BUILTINS = (hash, bool, len, iter, float, int, complex, round, repr, str, format)
_METHODS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*_BINARY.split(), *_OPERATORS.split())},
    **{f"r{name}": _swapped(getattr(operator, name)) for name in _BINARY.split()},
    **{function.__name__: function for function in _BUILTINS},
    "array": np.asarray,
}
# Python looks for these on the class and never asks __getattr__.
for _name, _function in _METHODS.items():
    setattr(Deferred, f"__{_name.rstrip('_')}__", _handed_on(_function))
