"""The contract of a tuning strategy: propose the next plan from the space and the results so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neural_compressor.registry import Registry
from neural_compressor.schemes import Plan
from neural_compressor.strategy.space import TuningSpace


@dataclass(frozen=True)
class Proposal:
    """A plan to try; ``stage`` says in a few words why (shown in tables, kept in the journal)."""

    plan: Plan
    stage: str


@dataclass(frozen=True)
class Outcome:
    """What came of a proposal. ``loss`` is how much accuracy was lost, in the criterion's terms: lower is better, and
    it holds the promise exactly when ``passed``. ``score`` is the objective: higher is better, 1.0 is the baseline."""

    loss: float
    passed: bool
    score: float


class Strategy(ABC):
    """Ask/tell over :meth:`proposals`, a generator that yields proposals and is sent their outcomes.

    A strategy is deterministic: the same space, seed and outcomes give the same proposals. That is how a killed run
    resumes.
    """

    #: The options (``strategy_kwargs``) the strategy takes.
    known_options: ClassVar[tuple[str, ...]] = ()

    #: Whether tuning that stops once a plan has passed may do so now, that is after :meth:`tell`. It is False while
    #: what has passed is only a part of a plan that the strategy is still building up, step by step.
    may_stop: bool = True

    def __init__(self, space: TuningSpace, seed: int = 42, options: Mapping[str, Any] | None = None) -> None:
        self.space = space
        self.seed = seed
        self.options = dict(options or {})
        self._stream: Generator[Proposal, Outcome, None] | None = None
        self._pending: Proposal | None = None
        self._asked = False

    @abstractmethod
    def proposals(self) -> Generator[Proposal, Outcome, None]:
        """Yield proposals; each ``yield`` evaluates to the outcome of what it proposed."""

    def ask(self) -> Proposal | None:
        """The next proposal, or None when the strategy has nothing more to try."""
        if self._stream is None:
            self._stream = self.proposals()
            self._pending = next(self._stream, None)
        self._asked = True
        return self._pending

    def tell(self, outcome: Outcome) -> None:
        """Report the outcome of the proposal that :meth:`ask` gave."""
        if self._stream is None or self._pending is None or not self._asked:
            raise RuntimeError("tell() without a pending proposal: call ask() first")
        self._asked = False
        try:
            self._pending = self._stream.send(outcome)
        except StopIteration:
            self._pending = None


STRATEGIES: Registry[type[Strategy]] = Registry("strategy", entry_point_group="neural_compressor.strategies")
