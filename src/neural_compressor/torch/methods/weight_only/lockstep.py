"""Run a model on many inputs at once, all of them stopping before each block.

Block-by-block calibration needs, for every sample, what the block is called with once the blocks before it are quantized.
How a model calls its blocks is its own affair: masks, positions, an encoder's output, any Python. So each sample runs the
model's own forward in a thread of its own, which waits at the door of every block. One thread moves at a time.

The blocks themselves run in the thread that drives. What a thread has freed the C library keeps for that thread, and a
thread that computes in parallel has a team of threads of its own: many samples would hold many times what a block needs.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from neural_compressor.errors import CalibrationError
from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.hooks import forward_replaced
from neural_compressor.torch.methods.weight_only.block_run import BlockRun, ReadsSeen
from neural_compressor.torch.methods.weight_only.sample_thread import Led, Sample, running
from neural_compressor.torch.structure.replay import Arguments, gains_from_bf16, independent, run_block

logger = logging.getLogger("neural_compressor")


def _joined(calls: Sequence[Arguments]) -> Arguments:
    """What a run of blocks is called with, or the only one of them."""
    return calls[0] if len(calls) == 1 else (tuple(calls), {})


@dataclass(frozen=True)
class Stop:
    """All samples that wait before ``blocks``, with what each is about to call ``module`` with.

    That is the block itself, or where there are several a :class:`BlockRun` of them. Where a float stream was asked for,
    ``float_calls`` are the same samples as the float model brings them here. Each of
    ``float_runs`` takes one of them through the last block and gives what that gave. All are called once, before any of the
    blocks is changed.
    """

    blocks: Sequence[str]
    module: nn.Module
    calls: Sequence[Arguments]
    float_calls: Sequence[Arguments] = ()
    float_runs: Sequence[Callable[[], Any]] = ()

    @property
    def block(self) -> str:
        """The first, or only, block."""
        return self.blocks[0]


class Lockstep:
    """Iterate over the stops of ``model`` at ``blocks`` for the given ``calls``.

    What the loop body does to a block is what the samples then run through. With ``float_stream`` every sample runs
    twice: the float one passes a block before the loop body changes it (:attr:`Stop.float_runs`) and so never meets a
    quantized one. ``enter`` is called with the name of a block before anything runs through it. With ``amp`` blocks that
    gain from it multiply in bfloat16.

    Samples wait before the blocks of each of ``runs`` together, which needs a float stream: that shows whether the model
    does nothing with what one block gives but call the next with it. Where it does more, there are two stops, and a warning.
    """

    def __init__(
        self,
        model: nn.Module,
        calls: Sequence[Arguments],
        blocks: Sequence[str],
        float_stream: bool = False,
        enter: Callable[[str], None] | None = None,
        amp: bool = False,
        runs: Sequence[Sequence[str]] = (),
    ) -> None:
        self.model = model
        self._enter = enter
        self._amp = amp
        self.blocks = {name: model.get_submodule(name) for name in blocks}
        self._forwards = {name: module.forward for name, module in self.blocks.items()}
        self._samples = [Sample(model, call) for call in calls]
        watched = any(len(run) > 1 for run in runs)
        floats = calls if float_stream else ()
        self._floats = [Sample(model, call, ReadsSeen() if watched else None) for call in floats]
        self._float_outputs: dict[Sample, Any] = {}
        self._following = {name: run[place + 1 :] for run in runs for place, name in enumerate(run)}
        self._leaving: list[Sample] = []
        self._visited: set[str] = set()
        self._told = False

    def __iter__(self) -> Iterator[Stop]:
        with ExitStack() as stack:
            for name, module in self.blocks.items():
                stack.enter_context(forward_replaced(module, self._door(name)))
            stack.enter_context(running([*self._samples, *self._floats]))
            while (block := self._next_block()) is not None:
                if block not in self._visited:
                    run = self._run_from(block)
                    yield self._stop(run)
                    block = run[-1]
                    self._let_floats_go(block)
                else:
                    self._pass(self._floats, block)
                self._pass(self._samples, block)

    def is_sample(self, thread: threading.Thread, floats: bool = False) -> bool:
        """Whether ``thread`` runs a sample of the quantized stream, or of the float one."""
        return thread in (self._floats if floats else self._samples)

    def _run_from(self, block: str) -> list[str]:
        """The blocks that are worked on together from ``block`` on; samples of both streams are led before the last."""
        run = [block]
        self._come_to(block)
        for following in self._following.get(block, ()):
            if why := self._why_apart(run[-1], following):
                self._tell(run[-1], following, why)
                break
            for sample, other in zip(self._samples, self._floats, strict=True):
                self._lead(sample, other.led[-1], following)
            run.append(following)
            self._come_to(following)
        return run

    def _come_to(self, block: str) -> None:
        self._visited.add(block)
        if self._enter is not None:
            self._enter(block)

    def _tell(self, block: str, following: str, why: str) -> None:
        if not self._told:
            logger.warning(
                "blocks %r and %r are trained one after the other, not together, and so are all others of which this "
                "holds: %s",
                *(block, following, why),
            )
        self._told = True

    def _why_apart(self, block: str, following: str) -> str | None:
        """Let the float samples pass ``block``; the reason why the next cannot be worked on together with it."""
        streams = (*self._samples, *self._floats)
        if following in self._visited or not self._floats or any(sample.block != block for sample in streams):
            return f"not all samples go from {block!r} to {following!r}, for the first time"
        why = None
        for sample in self._floats:
            call = independent(sample.calls()[-1])
            output = self._output(sample, block)
            # What is kept is a copy, as the model may write into what it is given.
            kept = independent(((output,), {}), Tensor.clone)[0][0]
            sample.led.append(Led(block, call, kept, list(tensors_in(output))))
            given = [each.given for each in sample.led]
            assert sample.reads is not None
            sample.reads.watch(tensor for tensors in given for tensor in tensors)
            sample.advance(output)
            del output, kept
            if sample.reads.any:
                why = f"the model computes with what {block!r} gives before it calls {following!r}"
            elif not sample.has_come(following):
                why = f"the model does not call {following!r} with what {block!r} gives"
        return why

    def _lead(self, sample: Sample, passed: Led, following: str) -> None:
        """Have ``sample`` wait before ``following``, with what stands for the output of the block that a float one has
        ``passed``."""
        assert sample.arguments is not None
        sample.led.append(Led(passed.block, sample.arguments, passed.output, list(tensors_in(passed.output))))
        sample.advance(passed.output)
        if not sample.has_come(following):
            raise CalibrationError(
                f"the float model calls {following!r} with what {passed.block!r} gives, and the quantized one does not; "
                "train one block at a time (nblocks=1)"
            )

    def _stop(self, run: Sequence[str]) -> Stop:
        last = run[-1]
        modules = [self.blocks[name] for name in run]
        calls = [_joined(s.calls()) for s in self._samples if s.block == last and s.arguments]
        float_calls: list[Arguments] = []
        float_runs: list[Callable[[], Any]] = []
        for sample in self._floats:
            if sample.led and sample.led[-1].block == last:  # it went on, to see what follows
                float_runs.append(lambda output=sample.led[-1].output: output)  # type: ignore[misc]
                float_calls.append(_joined([each.call for each in sample.led]))
            elif sample.block == last and sample.arguments:
                # Copies: the float samples go on before anyone looks at what they were about to call.
                float_calls.append(_joined([*(each.call for each in sample.led), independent(sample.calls()[-1])]))
                float_runs.append(functools.partial(self._run_float, sample, last))
                self._leaving.append(sample)
            sample.led = []
        return Stop(run, modules[0] if len(run) == 1 else BlockRun(modules), calls, float_calls, float_runs)

    def _run_float(self, sample: Sample, block: str) -> Any:
        # What follows the block waits: behind the last one nobody wants to know.
        self._float_outputs[sample] = output = self._output(sample, block)
        return output

    def _let_floats_go(self, block: str) -> None:
        if any(sample not in self._float_outputs for sample in self._leaving):
            raise RuntimeError(f"float samples were left before {block!r}, which is no longer float")
        self._leaving.clear()
        while self._float_outputs:
            sample, output = self._float_outputs.popitem()
            sample.advance(output)
            del output

    def _pass(self, samples: Sequence[Sample], block: str) -> None:
        """Let the samples that wait before ``block`` through it, and on to the next."""
        for sample in samples:
            if sample.block == block and sample.arguments:
                for led in sample.led:
                    # Whoever holds what stood for the output has it now.
                    for stand_in, tensor in zip(led.given, tensors_in(self._result(led.block, led.call)), strict=True):
                        stand_in.copy_(tensor)
                sample.led = []
                sample.advance(self._output(sample, block))

    def _output(self, sample: Sample, block: str) -> Any:
        assert sample.arguments is not None
        return self._result(block, sample.arguments)

    def _result(self, block: str, call: Arguments) -> Any:
        amp = self._amp and gains_from_bf16(self.blocks[block])
        return run_block(self.blocks[block], self._forwards[block], call, amp)

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
            if isinstance(thread, Sample) and thread.model is self.model:
                return thread.wait_at(name, (args, kwargs))
            return forward(*args, **kwargs)

        return wait_or_run
