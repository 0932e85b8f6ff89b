"""Try what is on a list, in its order."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from neural_compressor.strategy.base import Outcome, Proposal, Strategy
from neural_compressor.strategy.space import TuningSpace


class ListedStrategy(Strategy):
    """Proposes the given plans one after the other. It is made by whoever has the list, so no name stands for it."""

    def __init__(self, space: TuningSpace, listed: Sequence[Proposal], seed: int = 42) -> None:
        super().__init__(space, seed)
        self.listed = tuple(listed)

    def proposals(self) -> Generator[Proposal, Outcome, None]:
        """The list."""
        for proposal in self.listed:
            _ = yield proposal  # what came of it changes nothing
