"""Measurement of latency: calls timed in turns, and the interval of their median.

How latencies are compared, and why so:

- **In turns.** Calls alternate, in an order that is drawn anew and gone through there and back: what else the machine does
  hits all alike, and none always runs behind the same other one, which may leave the caches to it or not.
- **As ratios of one round.** The median of these is taken. Load that comes and goes slows both parts of a ratio.
- **On one thread, by its CPU time,** where the work can be kept to one (``Adaptor.on_one_thread``). Waiting for a core that
  another process has does not count. With several threads no statistic helps on a busy machine: they wait for each other
  at every operation, and the same model takes from half to three times as long from one moment to the next.
- **With an interval.** 95% of the median by order statistics, which assumes nothing of how times are distributed. Rounds go
  on until it is narrow or the budget is spent, which is counted by the same clock.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NOISE = 0.05
"""A difference in time below this share counts for nothing, however narrow the interval: where code and data happen to lie
in memory makes as much of one."""

_CHECKED_EVERY = 8
_NO_TIME = 1e-9
"""What a coarse clock gives for a short call is taken for a nanosecond."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Estimate:
    """The median of ``count`` values; ``spread`` is half the width of its 95% interval, as a share of it."""

    median: float
    spread: float
    count: int


@dataclass(frozen=True)
class Effort:
    """When to stop: at a spread of ``precision``, after ``budget_s`` seconds in the calls, or after ``max_rounds``.

    Calls that take long would make ``min_rounds`` a wait of minutes: after ``limit_s`` seconds three rounds are enough.
    """

    budget_s: float
    precision: float
    min_rounds: int = 5
    max_rounds: int = 400
    limit_s: float = math.inf

    def needs_more(self, rounds: int, spent: float) -> bool:
        """Whether there are too few ``rounds`` yet to stop."""
        return rounds < (self.min_rounds if spent < self.limit_s else min(self.min_rounds, 3))


QUICK = Effort(budget_s=0.3, precision=0.03, limit_s=3)
"""For every trial."""
THOROUGH = Effort(budget_s=1.5, precision=0.015, min_rounds=11, max_rounds=2000, limit_s=10)
"""For the few between which the verdict is."""


def estimate(values: Sequence[float]) -> Estimate:
    """The median of ``values`` with its interval.

    >>> estimate([1.0, 2.0, 3.0, 4.0, 100.0])
    Estimate(median=3.0, spread=16.5, count=5)
    """
    ordered, count = sorted(values), len(values)
    outside = max(math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1, 0)  # values left out at each end, for 95%
    middle = statistics.median(ordered)
    return Estimate(middle, (ordered[count - 1 - outside] - ordered[outside]) / 2 / middle, count)


def ratios_to_first(times: Sequence[Sequence[float]]) -> list[Estimate]:
    """Of calls that took turns, how long each took as a multiple of the first, round by round."""
    first, *others = times
    return [estimate([after / before for before, after in zip(first, other, strict=True)]) for other in others]


def timed_in_turns(
    calls: Sequence[Callable[[], Any]], effort: Effort, clock: Clock = time.perf_counter, warmup: int = 2
) -> list[list[float]]:
    """The seconds that each of ``calls`` took in each round, after ``warmup`` rounds that do not count."""
    for _ in range(warmup):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    turns = list(zip(calls, times, strict=True))
    orders = random.Random(0)
    spent, rounds = 0.0, 0
    while effort.needs_more(rounds, spent) or (rounds < effort.max_rounds and spent < effort.budget_s):
        if rounds % 2:
            turns.reverse()
        else:
            orders.shuffle(turns)
        for call, taken in turns:
            begun = clock()
            call()
            taken.append(max(clock() - begun, _NO_TIME))
            spent += taken[-1]
        rounds += 1
        if rounds >= effort.min_rounds and not rounds % _CHECKED_EVERY:
            found = ratios_to_first(times) if len(times) > 1 else [estimate(times[0])]
            if all(each.spread <= effort.precision for each in found):
                break
    return times


def thread_clock() -> Clock:
    """The CPU time of the calling thread, where it is fine enough."""
    # Windows counts it in ticks of 15 ms.
    return time.perf_counter if sys.platform == "win32" else time.thread_time
