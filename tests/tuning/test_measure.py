import sys
import time

import numpy as np
import pytest

from neural_compressor.tuning.measure import footprint_bytes, median_latencies_ms


def test_median_is_not_moved_by_a_few_slow_calls():
    calls = iter(range(10**6))
    latency = median_latencies_ms(lambda: time.sleep(0.05 if next(calls) in (0, 1, 4) else 0.002), budget_s=0.05)[0]
    assert 2.0 <= latency < 20.0


def test_slow_calls_run_few_times_and_fast_ones_stop_in_time():
    counts = {"slow": 0, "fast": 0}

    def slow():
        counts["slow"] += 1
        time.sleep(0.02)

    def fast():
        counts["fast"] += 1

    median_latencies_ms(slow, warmup=1, min_runs=3, budget_s=0.01)
    assert counts["slow"] == 4
    median_latencies_ms(fast, warmup=2, max_runs=50, budget_s=10.0)
    assert counts["fast"] == 52


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_footprint_sees_memory_that_is_given_back():
    size = 64 * 2**20
    np.ones(2 * size, dtype=np.uint8)  # an earlier, higher peak must not hide it
    grown = footprint_bytes(lambda: np.ones(size, dtype=np.uint8).sum())
    assert 0.9 * size < grown < 2 * size
    assert footprint_bytes(lambda: None) < 2**22


def test_calls_take_turns():
    order = []
    median_latencies_ms(lambda: order.append("a"), lambda: order.append("b"), warmup=1, min_runs=3, max_runs=3)
    assert order == ["a", "b"] * 4
