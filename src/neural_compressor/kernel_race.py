"""A race of kernels on this machine: each does the same work, and how long it takes is measured once and remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np

from neural_compressor.kernel_timings import KernelTimings

Work = Callable[[], object]

_SECONDS = 0.03
"""About how long the works of one race are repeated."""
_ROUNDS = (3, 15)
_EVICTED_BYTES = 8 << 20
"""What is written between two calls, so that no work finds its weight in the caches nearest to the core."""


class Race:
    """Measures works against each other; what is in ``timings`` is not measured again. The least that ``clocks`` say counts.

    >>> race = Race(KernelTimings(None))
    >>> times = race.microseconds({"one": lambda: (lambda: sum(range(10))), "other": lambda: (lambda: sum(range(9)))})
    >>> sorted(times) == ["one", "other"] and times == race.microseconds({"one": None, "other": None})
    True
    """

    def __init__(self, timings: KernelTimings, *clocks: Callable[[], float]) -> None:
        self.timings = timings
        # Beside other programs a process waits for its core, which its own time does not count; on several threads that is
        # the sum of theirs, and what passes is less.
        self._clocks = clocks or (time.perf_counter, time.process_time)

    def microseconds(self, makers: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        """The time of each work by its key; ``makers`` prepare works, and are called only where something is unknown."""
        known = self.known(makers)
        if len(known) < len(makers):
            # All of them run again: times taken in turn can be compared, those of different moments less.
            known = self._measured({key: make() for key, make in makers.items()})
            for key, value in known.items():
                self.timings.put(key, value)
        return known

    def known(self, keys: Mapping[str, object]) -> dict[str, float]:
        """What was measured before, of ``keys``."""
        return {key: value for key in keys if (value := self.timings.get(key)) is not None}

    def _measured(self, works: Mapping[str, Work]) -> dict[str, float]:
        evicted = np.zeros(_EVICTED_BYTES, dtype=np.uint8)
        best = dict.fromkeys(works, float("inf"))
        once = sum(self._once(work) for work in works.values())  # the first call of a kernel prepares it
        once = sum(self._once(work) for work in works.values()) if once < _SECONDS else once
        rounds = min(max(int(_SECONDS / max(once, 1e-9)), _ROUNDS[0]), _ROUNDS[1])
        for _ in range(rounds):
            for key, work in works.items():
                evicted += 1
                # The least is what the work takes: everything else the machine does only adds to it.
                best[key] = min(best[key], self._once(work))
        return {key: value * 1e6 for key, value in best.items()}

    def _once(self, work: Work) -> float:
        starts = [clock() for clock in self._clocks]
        work()
        return min(clock() - start for clock, start in zip(self._clocks, starts, strict=True))


R = TypeVar("R", bound=Race)


class Referee(Generic[R]):
    """Which race decides: the machine's own, unless another is put in its place for a while."""

    def __init__(self, usual: Callable[[], R | None]) -> None:
        self._stack = [usual]

    def current(self) -> R | None:
        """The race that decides now; None where fixed tables do."""
        return self._stack[-1]()

    @contextmanager
    def racing(self, race: R | None) -> Iterator[None]:
        """Let ``race`` decide between kernels, or with None the fixed tables: the same choice on every machine of a class.

        >>> referee = Referee(lambda: Race(KernelTimings(None)))
        >>> with referee.racing(None):
        ...     referee.current() is None
        True
        """
        self._stack.append(lambda: race)
        try:
            yield
        finally:
            self._stack.pop()
