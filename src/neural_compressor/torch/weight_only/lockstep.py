"""Run a model on many inputs at once, all of them stopping before each block.

Block-by-block calibration needs, for every sample, what the block is called with once the blocks before it are quantized.
How a model calls its blocks is its own affair: masks, positions, an encoder's output, any Python. So each sample runs the
model's own forward in a thread of its own, which waits at the door of every block. One thread moves at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Cancelled(BaseException):
    """Ends a sample's thread when the run is given up."""


class _Sample(threading.Thread):
    """One sample on its way through the model."""

    def __init__(self, model: nn.Module, call: Arguments) -> None:
        super().__init__(daemon=True)
        self.model = model
        self.call = call
        self.block: str | None = None
        self.arguments: Arguments | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self.cancelled:
                with torch.no_grad():
                    self.model(*self.call[0], **self.call[1])
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one, and raised there
            self.error = error
        self.block = self.arguments = None
        self._stopped.release()

    def advance(self) -> None:
        """Run to the next block or to the end; called by the thread that drives."""
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def wait_at(self, block: str, arguments: Arguments) -> None:
        """Stop before ``block``; called by the sample's own thread."""
        self.block, self.arguments = block, arguments
        self._stopped.release()
        self._go.acquire()
        self.block = self.arguments = None
        if self.cancelled:
            raise _Cancelled


@dataclass(frozen=True)
class Stop:
    """All samples that wait before ``block``, with what each is about to call it with.

    Where a float stream was asked for, ``float_calls`` are the same samples as the float model brings them here.
    """

    block: str
    calls: Sequence[Arguments]
    float_calls: Sequence[Arguments] | None = None


class Lockstep:
    """Iterate over the stops of ``model`` at ``blocks`` for the given ``calls``.

    What the loop body does to a block is what the samples then run through. With ``float_stream`` every sample runs
    twice: the float one passes a block before the loop body sees it and so never meets a quantized one. ``enter`` is
    called with the name of a block before anything runs through it.
    """

    def __init__(
        self,
        model: nn.Module,
        calls: Sequence[Arguments],
        blocks: Sequence[str],
        float_stream: bool = False,
        enter: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self._enter = enter
        self.blocks = {name: model.get_submodule(name) for name in blocks}
        self._samples = [_Sample(model, call) for call in calls]
        self._floats = [_Sample(model, call) for call in calls] if float_stream else []
        self._visited: set[str] = set()

    def __iter__(self) -> Iterator[Stop]:
        handles = [
            module.register_forward_pre_hook(self._door(name), with_kwargs=True) for name, module in self.blocks.items()
        ]
        everyone = [*self._samples, *self._floats]
        for sample in everyone:
            sample.start()
        try:
            self._advance(everyone)
            while (block := self._next_block()) is not None:
                waiting = [s for s in self._samples if s.block == block]
                floats = [s for s in self._floats if s.block == block]
                if block not in self._visited:
                    self._visited.add(block)
                    calls = [s.arguments for s in waiting if s.arguments]
                    float_calls = [s.arguments for s in floats if s.arguments] if self._floats else None
                    if self._enter is not None:
                        self._enter(block)
                    self._advance(floats)
                    yield Stop(block, calls, float_calls)
                self._advance(waiting)
        finally:
            for handle in handles:
                handle.remove()
            for sample in everyone:
                sample.cancelled = True
                sample._go.release()
            for sample in everyone:
                sample.join()

    def is_sample(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` runs a sample of the quantized stream."""
        return thread in self._samples

    def _advance(self, samples: Sequence[_Sample]) -> None:
        for sample in samples:
            sample.advance()

    def _next_block(self) -> str | None:
        order = list(self.blocks)
        waiting = {s.block for s in self._samples if s.block is not None}
        return min(waiting, key=order.index) if waiting else None

    def _door(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            thread = threading.current_thread()
            if isinstance(thread, _Sample) and thread.model is self.model:
                thread.wait_at(name, (args, kwargs))

        return hook


def call_block(block: nn.Module, call: Arguments) -> Any:
    """The output of a block for recorded arguments, without gradients."""
    with torch.no_grad():
        return block(*call[0], **call[1])


def detached(call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Arguments:
    """Arguments without their history, nested containers left as they are."""

    def cut(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) else value

    return tuple(cut(a) for a in call[0]), {name: cut(v) for name, v in call[1].items()}
