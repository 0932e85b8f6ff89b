"""Test doubles of the adaptor suite: loaders, metrics and measurers that record their calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class CountingLoader:
    """Counts the batches that are taken from a data loader."""

    def __init__(self, dataloader: Iterable[Any]) -> None:
        self.dataloader, self.batch_size, self.count = dataloader, 1, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataloader:
            self.count += 1
            yield batch


class CountingMetric:
    """Counts updates; keeps the predictions it is given."""

    def __init__(self, seen: list[Any] | None = None) -> None:
        self.seen: list[Any] = [] if seen is None else seen

    def update(self, predictions: Any, labels: Any) -> None:
        """Take one batch."""
        self.seen.append(predictions)

    def result(self) -> int:
        """How many batches there were."""
        return len(self.seen)


class Measurer:
    """Keeps the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        """Before a prediction."""
        self.calls.append("start")

    def end(self) -> None:
        """After a prediction."""
        self.calls.append("end")
