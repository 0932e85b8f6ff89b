"""Measurement of a model: accuracy, latency, size, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.measure import (
    QUICK,
    THOROUGH,
    Effort,
    Estimate,
    estimate,
    ratios_to_first,
    thread_clock,
    timed_in_turns,
)
from neural_compressor.tuning.memory import footprint_bytes
from neural_compressor.tuning.result import Measurement

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor


@dataclass(frozen=True)
class Bench:
    """What to measure models with. Latency and footprint need an ``example_batch``; the footprint only on demand."""

    adaptor: Adaptor
    evaluator: Evaluator | None
    example_batch: Any = None
    with_footprint: bool = False
    reference: tuple[Any, float] | None = None

    def against(self, model: Any, measured: Measurement) -> Bench:
        """A bench that compares with ``model``, which it has measured.

        It tells the latency of another model as a multiple of this one's, from runs of both in turns.
        """
        return self if measured.latency_ms is None else replace(self, reference=(model, measured.latency_ms))

    @property
    def identity(self) -> str:
        """What is measured, in a few words: a journal is gone on with only where that is the same."""
        if self.example_batch is None:
            return "accuracy size"
        return "accuracy size latency in turns" + (" footprint" if self.with_footprint else "")

    def measure(self, model: Any) -> Measurement:
        """Everything that can be told of ``model``."""
        evaluated = self.evaluated(model, Measurement(None))
        latency, footprint = None, None
        if self.example_batch is not None:
            # memory first: a warmed-up allocator hides what the first call needs
            if self.with_footprint:
                footprint = footprint_bytes(lambda: self.adaptor.predict(model, self.example_batch))
            latency = self._latencies([model], QUICK)[0]
        size, exactness = self.adaptor.model_size(model), self.adaptor.output_sqnr(model)
        measured = replace(evaluated, size_bytes=size, footprint_bytes=footprint, output_sqnr=exactness)
        return _with_latency(measured, latency)

    def evaluated(self, model: Any, measured: Measurement) -> Measurement:
        """What was ``measured`` of ``model``, with what the evaluation says now, where there is one."""
        found = None if self.evaluator is None else self.evaluator.evaluate(model)
        self.adaptor.settle(model)
        return measured if found is None else measured.with_evaluation(*found)

    def measure_again(self, models: Sequence[Any], measured: Sequence[Measurement]) -> list[Measurement]:
        """What was ``measured`` of ``models``, with latencies from many rounds in which all of them take turns."""
        return list(map(_with_latency, measured, self._latencies(models, THOROUGH)))

    def _latencies(self, models: Sequence[Any], effort: Effort) -> list[Estimate]:
        """In milliseconds; where there is a reference, multiples of its latency."""

        def predict(model: Any) -> Callable[[], Any]:
            return lambda: self.adaptor.predict(model, self.example_batch)

        raced = [*models] if self.reference is None else [self.reference[0], *models]
        with self.adaptor.on_one_thread(raced) as alone:
            times = timed_in_turns([*map(predict, raced)], effort, thread_clock() if alone else time.perf_counter)
        if self.reference is None:
            return [_scaled(estimate(taken), 1e3) for taken in times]
        return [_scaled(ratio, self.reference[1]) for ratio in ratios_to_first(times)]


def _scaled(value: Estimate, factor: float) -> Estimate:
    return replace(value, median=value.median * factor)


def _with_latency(measured: Measurement, latency: Estimate | None) -> Measurement:
    if latency is None:
        return measured
    return replace(measured, latency_ms=latency.median, latency_spread=latency.spread, latency_rounds=latency.count)
