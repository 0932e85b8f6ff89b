"""The contract of a tuning strategy: propose plans from the space and the results so far."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.strategy.space import TuningSpace

logger = logging.getLogger("neural_compressor")


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


Proposals = Generator[Proposal | Iterable[Proposal], Any, None]
"""Yields one proposal and is sent its :class:`Outcome`, or several and is sent the list of theirs, in the same order.
What is yielded together does not depend on each other's outcomes, and may be a generator that is read as far as asked."""


class Strategy(ABC):
    """Ask/tell over :meth:`proposals`, a generator.

    A strategy is deterministic: the same space, seed and outcomes give the same proposals, in whatever order the outcomes
    of those that were asked for together are told. That is how a killed run resumes, and how several workers share one.
    """

    #: The options (``strategy_kwargs``) the strategy takes.
    known_options: ClassVar[tuple[str, ...]] = ()

    #: How many proposals there are at most, where that is known.
    total: int | None = None

    #: Whether tuning that stops once a plan has passed may do so now, that is after :meth:`tell`. It is False while
    #: what has passed is only a part of a plan that the strategy is still building up, step by step.
    may_stop: bool = True

    #: Gives the output error of each op that a plan quantizes (``Adaptor.op_errors``); None where nobody can tell.
    op_errors: Callable[[Plan], Mapping[OpKey, float]] | None = None
    #: Gives the share of the model's output error that is due to each op a plan quantizes, on so many batches of data.
    output_errors: Callable[[Plan, int], Mapping[OpKey, float]] | None = None
    #: Gives what the loss of a user gains by each op a plan quantizes, to second order (``Adaptor.op_curvatures``).
    loss_errors: Callable[[Plan, Callable[..., Any]], Mapping[OpKey, float]] | None = None

    def __init__(self, space: TuningSpace, seed: int = 42, options: Mapping[str, Any] | None = None) -> None:
        self.space = space
        self.seed = seed
        self.options = dict(options or {})
        self._stream: Proposals | None = None
        self._single = True
        self._batch: Iterator[Proposal] = iter(())
        self._next: Proposal | None = None
        self._outcomes: list[Outcome | None] = []
        self._pending: dict[int, Proposal] = {}

    @abstractmethod
    def proposals(self) -> Proposals:
        """Yield a proposal, or several that do not depend on each other; each ``yield`` evaluates to what came of them."""

    def ask(self, n: int = 1) -> list[Proposal]:
        """Up to ``n`` proposals that were not given before and do not depend on outcomes still to be told.

        An empty list while others are pending says that these come first; otherwise, that there is nothing more to try.
        """
        if self._stream is None:
            self._stream = self.proposals()
            self._advance(None)
        given: list[Proposal] = []
        while self._next is not None and len(given) < n:
            given.append(self._next)
            self._pending[len(self._outcomes)] = self._next
            self._outcomes.append(None)
            self._next = next(self._batch, None)
        return given

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report the outcome of a proposal that :meth:`ask` gave; those that are pending may be told in any order."""
        place = next((place for place, pending in self._pending.items() if pending == proposal), None)
        if place is None:
            raise RuntimeError(f"tell() of a proposal that is not pending ({proposal.stage}): call ask() first")
        del self._pending[place]
        self._outcomes[place] = outcome
        if not self._pending and self._next is None:
            self._advance(self._outcomes[0] if self._single else self._outcomes)

    def _advance(self, answer: Any) -> None:
        """Go on to the next proposals that there are."""
        assert self._stream is not None
        while self._next is None:
            try:
                asked = self._stream.send(answer)
            except StopIteration:
                return
            self._single = isinstance(asked, Proposal)
            self._batch = iter([asked] if isinstance(asked, Proposal) else asked)
            self._outcomes = answer = []
            self._next = next(self._batch, None)


STRATEGIES: Registry[type[Strategy]] = Registry("strategy", entry_point_group="neural_compressor.strategies")
_DEFAULT = TuningCriterion().strategy


def strategy_for(conf: PostTrainingQuantConfig, space: TuningSpace) -> Strategy:
    """The strategy of ``conf``: conservative at quantization level 0, the one that is named at level 1; at level auto
    the one that is named, or ``auto`` where that is the default. An unknown name or option is an error."""
    named = conf.tuning_criterion.strategy
    kind = STRATEGIES[named]
    if conf.quant_level == 0:
        if named not in (_DEFAULT, "conservative"):
            logger.warning(
                "quant_level=0 tunes with the conservative strategy; strategy=%r takes quant_level 1 or 'auto'", named
            )
        kind = STRATEGIES["conservative"]
    elif conf.quant_level == "auto" and named == _DEFAULT:
        kind = STRATEGIES["auto"]
    return kind(space, conf.seed, known_options(kind, named, conf.tuning_criterion.strategy_kwargs))


def known_options(kind: type[Strategy], named: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """``options``, which the strategy takes; one that it does not is an error."""
    for name in options:
        if name not in kind.known_options:
            known = close_matches(name, kind.known_options) if kind.known_options else "it takes none"
            raise ConfigError(f"strategy_kwargs has {name!r}, which strategy {named!r} does not take; {known}")
    return options
