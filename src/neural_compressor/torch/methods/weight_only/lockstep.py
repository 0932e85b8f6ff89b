"""Run a model on many inputs at once, all of them stopping before each block.

Block-by-block calibration needs, for every sample, what the block is called with once the blocks before it are quantized.
How a model calls its blocks is its own affair: masks, positions, an encoder's output, any Python. So each sample runs the
model's own forward in a thread of its own, which waits at the door of every block. One thread moves at a time.

The blocks themselves run in the thread that drives. What a thread has freed the C library keeps for that thread, and a
thread that computes in parallel has a team of threads of its own: many samples would hold many times what a block needs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neural_compressor.torch.hooks import forward_replaced
from neural_compressor.torch.structure.replay import Arguments, gains_from_bf16, independent, run_block


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
        self._output: Any = None
        self._cancelled = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._cancelled:
                _compute_alone()
                args, kwargs = independent(self.call)
                with torch.no_grad():
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
        self.block, self.arguments = block, arguments
        self._stopped.release()
        self._go.acquire()
        if self._cancelled:
            raise _Cancelled
        output, self._output = self._output, None
        return output

    def cancel(self) -> None:
        """Give the sample up."""
        self._cancelled = True
        self._go.release()


@dataclass(frozen=True)
class Stop:
    """All samples that wait before ``block``, with what each is about to call it with.

    Where a float stream was asked for, ``float_calls`` are the same samples as the float model brings them here. Each of
    ``float_runs`` takes one of them through the block and gives what the block gave. All are called once, before the
    block is changed.
    """

    block: str
    calls: Sequence[Arguments]
    float_calls: Sequence[Arguments] = ()
    float_runs: Sequence[Callable[[], Any]] = ()


class Lockstep:
    """Iterate over the stops of ``model`` at ``blocks`` for the given ``calls``.

    What the loop body does to a block is what the samples then run through. With ``float_stream`` every sample runs
    twice: the float one passes a block before the loop body changes it (:attr:`Stop.float_runs`) and so never meets a
    quantized one. ``enter`` is called with the name of a block before anything runs through it. With ``amp`` blocks that
    gain from it multiply in bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        calls: Sequence[Arguments],
        blocks: Sequence[str],
        float_stream: bool = False,
        enter: Callable[[str], None] | None = None,
        amp: bool = False,
    ) -> None:
        self.model = model
        self._enter = enter
        self._amp = amp
        self.blocks = {name: model.get_submodule(name) for name in blocks}
        self._forwards = {name: module.forward for name, module in self.blocks.items()}
        self._samples = [_Sample(model, call) for call in calls]
        self._floats = [_Sample(model, call) for call in calls] if float_stream else []
        self._float_outputs: dict[_Sample, Any] = {}
        self._visited: set[str] = set()

    def __iter__(self) -> Iterator[Stop]:
        with ExitStack() as stack:
            for name, module in self.blocks.items():
                stack.enter_context(forward_replaced(module, self._door(name)))
            stack.enter_context(_running([*self._samples, *self._floats]))
            while (block := self._next_block()) is not None:
                if block not in self._visited:
                    self._visited.add(block)
                    if self._enter is not None:
                        self._enter(block)
                    yield self._stop(block)
                    self._let_floats_go(block)
                else:
                    self._pass(self._floats, block)
                self._pass(self._samples, block)

    def is_sample(self, thread: threading.Thread, floats: bool = False) -> bool:
        """Whether ``thread`` runs a sample of the quantized stream, or of the float one."""
        return thread in (self._floats if floats else self._samples)

    def _stop(self, block: str) -> Stop:
        calls = [s.arguments for s in self._samples if s.block == block and s.arguments]
        floats = [s for s in self._floats if s.block == block and s.arguments]
        # Copies: the float samples go on before anyone looks at what they were about to call.
        float_calls = [independent(s.arguments) for s in floats if s.arguments]
        return Stop(block, calls, float_calls, [functools.partial(self._run_float, s, block) for s in floats])

    def _run_float(self, sample: _Sample, block: str) -> Any:
        # What follows the block waits: behind the last one nobody wants to know.
        self._float_outputs[sample] = output = self._output(sample, block)
        return output

    def _let_floats_go(self, block: str) -> None:
        left = [s for s in self._floats if s.block == block and s not in self._float_outputs]
        if left:
            raise RuntimeError(f"float samples were left before {block!r}, which is no longer float")
        while self._float_outputs:
            sample, output = self._float_outputs.popitem()
            sample.advance(output)
            del output

    def _pass(self, samples: Sequence[_Sample], block: str) -> None:
        """Let the samples that wait before ``block`` through it, and on to the next."""
        for sample in samples:
            if sample.block == block and sample.arguments:
                sample.advance(self._output(sample, block))

    def _output(self, sample: _Sample, block: str) -> Any:
        assert sample.arguments is not None
        amp = self._amp and gains_from_bf16(self.blocks[block])
        return run_block(self.blocks[block], self._forwards[block], sample.arguments, amp)

    def _next_block(self) -> str | None:
        order = list(self.blocks)
        waiting = {s.block for s in self._samples if s.block is not None}
        return min(waiting, key=order.index) if waiting else None

    def _door(self, name: str) -> Callable[..., Any]:
        """The forward of a block at which samples wait for its output; any other thread runs it."""
        forward = self._forwards[name]

        @functools.wraps(forward)
        def wait_or_run(*args: Any, **kwargs: Any) -> Any:
            thread = threading.current_thread()
            if isinstance(thread, _Sample) and thread.model is self.model:
                return thread.wait_at(name, (args, kwargs))
            return forward(*args, **kwargs)

        return wait_or_run


@contextmanager
def _running(samples: Sequence[_Sample]) -> Iterator[None]:
    """All samples started and before their first block; at the end those that are still on their way are given up."""
    threads = torch.get_num_threads()
    started: list[_Sample] = []
    try:
        for sample in samples:
            sample.start()
            started.append(sample)
            sample.advance()
            torch.set_num_threads(threads)
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
