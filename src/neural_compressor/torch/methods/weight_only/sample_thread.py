"""A sample on its way through a model, in a thread of its own that waits at the door of every block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.torch.methods.weight_only.block_run import ReadsSeen, hands_over, marked
from neural_compressor.torch.structure.replay import Arguments, independent


class _Cancelled(BaseException):
    """Ends a sample's thread when the run is given up."""


@dataclass(frozen=True)
class Led:
    """A block of a run that a sample was led past, to wait before a later one.

    A float sample has passed it: ``call`` and ``output`` are copies, and ``given`` the tensors that the model got. Another
    has not: ``given`` are tensors of ``output``, which stand for what the block will give.
    """

    block: str
    call: Arguments
    output: Any
    given: list[Tensor]


class Sample(threading.Thread):
    """One sample on its way through the model."""

    def __init__(self, model: nn.Module, call: Arguments, reads: ReadsSeen | None = None) -> None:
        super().__init__(daemon=True)
        self.model = model
        self.call = call
        self.reads = reads
        self.led: list[Led] = []
        self.block: str | None = None
        self.arguments: Arguments | None = None
        self.error: BaseException | None = None
        # Of the thread that makes this one: a new thread starts with the first, where code of the model's would then run.
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._gpu = torch.cuda.current_device() if has_gpu else None
        self._output: Any = None
        self._cancelled = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._cancelled:
                _compute_alone()
                if self._gpu is not None:
                    torch.cuda.set_device(self._gpu)
                args, kwargs = independent(self.call)
                with torch.no_grad(), self.reads or nullcontext():
                    self.model(*args, **kwargs)
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one, and raised there
            self.error = error
        self._stopped.release()

    def advance(self, output: Any = None) -> None:
        """Run to the next block or to the end, from where the last block gave ``output``; called by the driver."""
        self.block = self.arguments = None
        self._output = output
        del output
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def wait_at(self, block: str, arguments: Arguments) -> Any:
        """Stop before ``block`` until its output is there; called by the sample's own thread."""
        if not self._cancelled:  # else the model caught what ends it, as a bare except does
            self.block, self.arguments = block, arguments
            self._stopped.release()
            self._go.acquire()
        if self._cancelled:
            raise _Cancelled
        output, self._output = self._output, None
        return output

    def calls(self) -> list[Arguments]:
        """Those of the blocks that it was led past and of the one it waits before, with marks for what they give."""
        assert self.arguments is not None
        calls, given = [*(each.call for each in self.led), self.arguments], [each.given for each in self.led]
        return [marked(call, given[:place]) if place else call for place, call in enumerate(calls)]

    def has_come(self, block: str) -> bool:
        """Whether it waits before ``block`` with what the block gave that it was led past last."""
        given = [each.given for each in self.led]
        return self.block == block and self.arguments is not None and hands_over(self.arguments, given)

    def cancel(self) -> None:
        """Give the sample up."""
        self._cancelled = True
        self._go.release()


@contextmanager
def running(samples: Sequence[Sample]) -> Iterator[None]:
    """All samples started and before their first block; at the end those that are still on their way are given up."""
    threads = torch.get_num_threads()
    started: list[Sample] = []
    try:
        for sample in samples:
            sample.start()
            started.append(sample)
            try:
                sample.advance()
            finally:
                torch.set_num_threads(threads)  # of threads to come, too
        yield
    finally:
        for sample in started:
            sample.cancel()
        for sample in started:
            sample.join()


def _compute_alone() -> None:
    """Let the thread that calls this use one thread for its tensors, and no other thread; what is new counts as other."""
    torch.get_num_threads()  # which sets a number for a new thread, and would do so later otherwise
    torch.set_num_threads(1)
