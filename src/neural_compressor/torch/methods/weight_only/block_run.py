"""Consecutive blocks worked on as one: each is called as the model calls it, with what those before it give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.structure.replay import Arguments


@dataclass(frozen=True)
class HandedOver:
    """In a recorded call, the place of tensor number ``tensor`` of what block number ``block`` of the run gives."""

    block: int
    tensor: int


class BlockRun(nn.Module):
    """``blocks`` one after another, called with the recorded call of each, in which :class:`HandedOver` stands for what
    comes from earlier ones.

    >>> import torch
    >>> run = BlockRun([nn.ReLU(), nn.Flatten(0)])
    >>> run(((torch.tensor([[-1.0, 2.0]]),), {}), ((HandedOver(0, 0),), {})).tolist()
    [0.0, 2.0]
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, *calls: Arguments) -> Any:
        given: list[list[Tensor]] = []
        output = None
        for block, call in zip(self.blocks, calls, strict=True):
            args, kwargs = tree_map(lambda value: _filled_in(value, given), call)
            output = block(*args, **kwargs)
            given.append(list(tensors_in(output)))
        return output


def _filled_in(value: Any, given: Sequence[Sequence[Tensor]]) -> Any:
    return given[value.block][value.tensor] if isinstance(value, HandedOver) else value


def marked(call: Arguments, given: Sequence[Sequence[Tensor]]) -> Arguments:
    """``call`` with :class:`HandedOver` in the places of those tensors that the blocks before have ``given``."""
    places = {id(t): HandedOver(i, j) for i, tensors in enumerate(given) for j, t in enumerate(tensors)}
    found: Arguments = tree_map(lambda value: places.get(id(value), value), call)
    return found


def hands_over(call: Arguments, given: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the block that gave the last of ``given`` feeds ``call``, and no object holds what blocks gave."""
    found = marked(call, given)
    held = {id(tensor) for tensors in given for tensor in tensors}
    hidden = any(id(tensor) in held for tensor in tensors_in(found))
    places = [value for value in tree_leaves(found) if isinstance(value, HandedOver)]
    return not hidden and any(place.block == len(given) - 1 for place in places)


class ReadsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells whether anything is computed with some tensors, in the thread that has entered this."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched: set[int] = set()
        self.any = False

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """From now on look for these, which somebody holds, and no others."""
        self._watched, self.any = {id(tensor) for tensor in tensors}, False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._watched and any(id(tensor) in self._watched for tensor in tensors_in((args, kwargs))):
            self.any = True
        return func(*args, **(kwargs or {}))
