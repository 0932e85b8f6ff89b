"""Calls of a model or block, recorded: cut to the data wanted, made again as if each time were the first, or made late.

A :class:`Deferred` stands for the output of a call until somebody looks at it.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from neural_compressor.errors import CalibrationError
from neural_compressor.torch.batches import batch_size, tensors_in
from neural_compressor.torch.modules.kernels.dequantized_product import is_fast_at_bf16

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_KEEPS_STATE = "use_cache"
"""The argument by which language models are asked to hand back what the next token needs."""


def independent(call: Arguments, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Arguments:
    """The same arguments for one more call: what it changes in them is not seen by the next.

    A cache of keys and values grows in the hands of every block that is given it. So objects are copied with the tensors
    they hold; tensors and modules that are arguments themselves are handed on, without history. ``change`` makes of each
    tensor, wherever it is held, the one that is handed on.

    >>> import torch
    >>> class Cache:
    ...     def __init__(self):
    ...         self.seen = []
    >>> call = ((torch.ones(2), Cache()), {})
    >>> independent(call)[0][1].seen.append(1)
    >>> call[0][1].seen
    []
    """
    memo: dict[int, Any] = {}
    for value in _leaves(call):
        if isinstance(value, Tensor):
            memo[id(value)] = change(value.detach())
        elif isinstance(value, nn.Module):
            memo[id(value)] = value
        else:
            memo |= {id(t): change(t.detach()).clone() for t in tensors_in(value) if id(t) not in memo}
    try:
        return copy.deepcopy(call, memo)
    except TypeError as error:
        kinds = sorted({type(v).__name__ for v in _leaves(call) if not isinstance(v, Tensor)})
        raise CalibrationError(
            f"a block is called once for each measurement, and one of its arguments ({', '.join(kinds)}) cannot be "
            f"copied for that: {error}"
        ) from error


def remembered(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """A call of ``module`` as it is now, to be made later for what happens inside.

    No call follows that a cache would serve, and the caches of all samples together are larger than the model.
    """
    order = list(inspect.signature(type(module).forward).parameters)[1:]
    if _KEEPS_STATE in order[len(args) :]:
        kwargs = {**kwargs, _KEEPS_STATE: False}
    return independent((tuple(args), dict(kwargs)))


def call_block(block: nn.Module, call: Arguments, amp: bool = False) -> Any:
    """The output of a block for recorded arguments, without gradients; with ``amp`` it multiplies in bfloat16."""
    return run_block(block, block, independent(call), amp)


def gains_from_bf16(block: nn.Module) -> bool:
    """Whether a block has float32 weights, and is on a device that is fast at bfloat16.

    That is two to three times as fast on a CPU, and next to what quantization does the rounding is nothing.
    """
    held = _first_floats(block)
    return held is not None and held.dtype == torch.float32 and is_fast_at_bf16(held.device.type)


def _first_floats(block: nn.Module) -> Tensor | None:
    return next((t for t in itertools.chain(block.parameters(), block.buffers()) if t.is_floating_point()), None)


def run_block(block: nn.Module, forward: Callable[..., Any], call: Arguments, amp: bool) -> Any:
    """What ``forward`` of a block gives, without gradients; with ``amp`` computed in bfloat16, and given as float32."""
    held = _first_floats(block)
    args, kwargs = call
    with torch.no_grad(), torch.autocast("cpu" if held is None else held.device.type, torch.bfloat16, enabled=amp):
        output = forward(*args, **kwargs)
    return tree_map(_widened, output) if amp else output


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def is_plain(call: Arguments) -> bool:
    """Whether a call is made of tensors and plain values alone: nothing that it could leave changed for the next.

    >>> is_plain(((torch.ones(2), None), {"use_cache": True})), is_plain(((object(),), {}))
    (True, False)
    """
    return all(value is None or isinstance(value, Tensor | bool | int | float | str) for value in _leaves(call))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


@dataclass(frozen=True)
class CalibrationLimit:
    """At most so many samples (rows of batches), and so many tokens of each.

    Tokens are counted where there are: integers of shape (samples, tokens), such as ids and masks. What is as long as
    these is cut with them.

    >>> import torch
    >>> ids = torch.arange(12).reshape(3, 4)
    >>> CalibrationLimit(samples=4, tokens=2).cut(((ids,), {}), seen=2)[0][0].tolist()
    [[0, 1], [4, 5]]
    """

    samples: float = math.inf
    tokens: float = math.inf

    @classmethod
    def covering(cls, limits: Iterable[CalibrationLimit]) -> CalibrationLimit:
        """Enough for all of several."""
        listed = list(limits)
        return cls(max((each.samples for each in listed), default=0), max((each.tokens for each in listed), default=0))

    def cut(self, call: Arguments, seen: int) -> Arguments | None:
        """What is used of a call of the model behind ``seen`` samples; None where that is nothing."""
        rows, left = batch_size(call), self.samples - seen
        if left <= 0:
            return None
        numbers = [t for t in tensors_in(call) if t.dim() == 2 and not t.is_floating_point()]
        long = {t.shape[1] for t in numbers if t.shape[1] > self.tokens}

        def used(tensor: Tensor) -> Tensor:
            if tensor.dim() > 1 and tensor.shape[1] in long:
                tensor = tensor[:, : int(self.tokens)]
            return tensor[: int(left)] if rows > left and tensor.dim() and tensor.shape[0] == rows else tensor

        return independent(call, used)


def in_two(call: Arguments) -> list[Arguments]:
    """The two halves of the samples of a call; a call of one sample alone.

    >>> import torch
    >>> [half[0][0].tolist() for half in in_two(((torch.arange(5),), {}))]
    [[0, 1], [2, 3, 4]]
    """
    rows = batch_size(call)
    if rows < 2:
        return [call]
    parts = slice(0, rows // 2), slice(rows // 2, None)
    return [independent(call, lambda t, part=part: t[part] if _has(t, rows) else t) for part in parts]  # type: ignore[misc]


def _has(tensor: Tensor, rows: int) -> bool:
    return bool(tensor.dim()) and tensor.shape[0] == rows


# -- outputs computed when somebody looks at them ---------------------------------------------------------------------


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
