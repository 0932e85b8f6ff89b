"""Measures one model: accuracy, latency, size, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.measure import footprint_bytes, median_latencies_ms
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

        It runs both in turns and tells the latency of another model as a multiple of this one's: two figures from two
        moments would compare what else the machine was doing.
        """
        return self if measured.latency_ms is None else replace(self, reference=(model, measured.latency_ms))

    @property
    def identity(self) -> str:
        """What is measured, in a few words: a journal is gone on with only where that is the same."""
        if self.example_batch is None:
            return "accuracy size"
        return "accuracy size latency" + (" footprint" if self.with_footprint else "")

    def measure(self, model: Any) -> Measurement:
        """Everything that can be told of ``model``."""
        accuracy = self.accuracy(model)
        latency = footprint = None
        if self.example_batch is not None:
            # memory first: a warmed-up allocator hides what the first call needs
            if self.with_footprint:
                footprint = footprint_bytes(lambda: self.adaptor.predict(model, self.example_batch))
            latency = self._latency_ms(model)
        size, exactness = self.adaptor.model_size(model), self.adaptor.output_sqnr(model)
        return Measurement(accuracy, latency, size, footprint, exactness)

    def accuracy(self, model: Any) -> float | None:
        """What the evaluation says of ``model``, and None where there is none."""
        accuracy = self.evaluator(model) if self.evaluator is not None else None
        self.adaptor.settle(model)
        return accuracy

    def _latency_ms(self, model: Any) -> float:
        def predict(candidate: Any) -> Callable[[], Any]:
            return lambda: self.adaptor.predict(candidate, self.example_batch)

        if self.reference is None:
            return median_latencies_ms(predict(model))[0]
        baseline, known = self.reference
        now, candidate = median_latencies_ms(predict(baseline), predict(model))
        return known * candidate / now
