import itertools
import random
import statistics
from collections import Counter

import pytest

from neural_compressor.tuning.measure import Effort, estimate, ratios_to_first, timed_in_turns


class Machine:
    """A clock that calls move on: each takes its seconds, times what the machine makes of them at the moment."""

    def __init__(self, load=lambda: 1.0):
        self.now = 0.0
        self.load = load
        self.order = []

    def clock(self):
        return self.now

    def call(self, name, seconds):
        def call():
            self.order.append(name)
            self.now += seconds * self.load()

        return call


def test_the_interval_of_a_median_against_the_textbook():
    # n = 100: the ranks of the 95% interval of a median are 40 and 61, counted from 1 (Conover, Practical Nonparametric
    # Statistics), and the median of 1..100 is 50.5
    assert estimate(range(1, 101)).spread == pytest.approx((61 - 40) / 2 / 50.5)
    assert estimate([3.0]).spread == 0.0
    assert estimate([2.0] * 9).spread == 0.0


def test_an_interval_covers_the_median_about_as_often_as_it_says():
    generator = random.Random(7)
    hits = 0
    for _ in range(400):
        found = estimate([1.0 + generator.expovariate(1.0) for _ in range(60)])
        hits += abs(found.median - (1.0 + 0.6931)) <= 2 * found.spread * found.median
    assert hits / 400 > 0.93


def test_calls_take_turns_and_each_runs_behind_each_other_about_as_often():
    machine = Machine()
    calls = [machine.call(name, 1.0) for name in "abc"]
    timed_in_turns(calls, Effort(0.0, 0.0, min_rounds=240), machine.clock, warmup=0)
    order = "".join(machine.order)
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"abc"}
    assert all(back == there[::-1] for there, back in zip(rounds[::2], rounds[1::2], strict=True))
    behind = Counter(pair for pair in itertools.pairwise(order) if pair[0] != pair[1])
    assert len(behind) == 6
    assert max(behind.values()) < 1.5 * min(behind.values())


def test_a_call_that_finds_the_caches_as_it_left_them_has_no_advantage_over_its_like():
    class Cached(Machine):
        """A call right behind itself is twice as fast, and one behind the slow model a little slower."""

        def call(self, name, seconds):
            def call():
                before = self.order[-1] if self.order else ""
                self.order.append(name)
                self.now += seconds * (0.5 if before == name else 1.2 if before == "f" else 1.0)

            return call

    machine = Cached()
    calls = [machine.call(name, seconds) for name, seconds in (("f", 3.0), ("a", 1.0), ("b", 1.0), ("c", 1.0))]
    times = timed_in_turns(calls, Effort(1e9, -1.0, 10, 400), machine.clock)
    means = [statistics.mean(taken) for taken in times[1:]]
    assert max(means) < 1.05 * min(means)


def test_rounds_end_with_the_budget_of_the_clock_or_with_their_number():
    machine = Machine()
    taken = timed_in_turns([machine.call("a", 1.0)], Effort(20.0, -1.0), machine.clock)
    assert len(taken[0]) == 20
    taken = timed_in_turns([machine.call("a", 0.0)], Effort(20.0, -1.0, max_rounds=30), machine.clock)
    assert len(taken[0]) == 30


@pytest.mark.parametrize(("seconds", "rounds"), [(0.1, 11), (0.4, 11), (1.0, 5), (9.0, 3)])
def test_long_calls_end_after_the_limit_with_three_rounds_at_least(seconds, rounds):
    machine = Machine()
    calls = [machine.call("a", seconds), machine.call("b", seconds)]
    effort = Effort(0.3, -1.0, min_rounds=11, limit_s=10.0)
    assert len(timed_in_turns(calls, effort, machine.clock)[0]) == rounds


def test_rounds_end_once_the_ratio_is_known_well_enough():
    generator = random.Random(1)
    steady, noisy = Machine(), Machine(lambda: generator.uniform(0.7, 1.3))
    rounds = [
        len(timed_in_turns([m.call("a", 1.0), m.call("b", 2.0)], Effort(1e9, 0.02), m.clock)[0])
        for m in (steady, noisy)
    ]
    assert rounds[0] == 8
    assert rounds[1] > 100


def test_load_that_comes_and_goes_does_not_move_the_ratio():
    # for a while everything takes three times as long: medians of two separate series would say so of one of them
    phases = iter([1.0] * 41 + [3.0] * 39 + [1.0] * 41 + [3.0] * 79)
    machine = Machine(lambda: next(phases))
    times = timed_in_turns([machine.call("a", 1.0), machine.call("b", 1.5)], Effort(1e9, -1.0, 10, 90), machine.clock)
    assert ratios_to_first(times)[0].median == pytest.approx(1.5)


def test_interruptions_of_single_calls_do_not_move_the_ratio():
    generator = random.Random(3)
    machine = Machine(lambda: 10.0 if generator.random() < 0.3 else 1.0)
    times = timed_in_turns([machine.call("a", 1.0), machine.call("b", 1.0)], Effort(1e9, -1.0, 10, 200), machine.clock)
    assert statistics.mean(times[1]) > 2.0
    assert ratios_to_first(times)[0].median == pytest.approx(1.0)


def test_a_clock_too_coarse_for_a_call_gives_a_ratio_all_the_same():
    times = timed_in_turns([lambda: None, lambda: None], Effort(1.0, 0.0, max_rounds=10), lambda: 5.0)
    assert ratios_to_first(times)[0].median == 1.0
