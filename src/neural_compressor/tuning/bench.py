"""Measures one model: accuracy, latency, size, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.measure import footprint_bytes, median_latency_ms
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

    @property
    def identity(self) -> str:
        """What is measured, in a few words: a journal is gone on with only where that is the same."""
        if self.example_batch is None:
            return "accuracy size"
        return "accuracy size latency" + (" footprint" if self.with_footprint else "")

    def measure(self, model: Any) -> Measurement:
        """Everything that can be told of ``model``."""
        accuracy = self.evaluator(model) if self.evaluator is not None else None
        latency = footprint = None
        if self.example_batch is not None:
            # memory first: a warmed-up allocator hides what the first call needs
            if self.with_footprint:
                footprint = footprint_bytes(lambda: self.adaptor.predict(model, self.example_batch))
            latency = median_latency_ms(lambda: self.adaptor.predict(model, self.example_batch))
        return Measurement(accuracy, latency, self.adaptor.model_size(model), footprint)
